package injector

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"regexp"
	"strconv"
	"strings"
)

// Chunk describes a chunk.
type Chunk struct {
	Size   int // bytes
	SHA256 [sha256.Size]byte
}

// Manifest is a parsed manifest. The zero value is invalid.
type Manifest struct {
	Program       Program
	LayerSize     int // bytes
	LayerSHA256   [sha256.Size]byte
	ProgramOffset int // bytes
	ProgramSize   int // bytes
	ProgramSHA256 [sha256.Size]byte
	Chunks        []Chunk
}

const manifestTitle = "zarf-registry payload 1"

// Bytes returns the encoded manifest. For one from [ParseManifest], it equals the input.
func (m *Manifest) Bytes() []byte {
	var b bytes.Buffer
	fmt.Fprintln(&b, manifestTitle)
	fmt.Fprintln(&b, "program", m.Program.Name)
	fmt.Fprintln(&b, "architecture", m.Program.Architecture)
	fmt.Fprintln(&b, "layer-size", m.LayerSize)
	fmt.Fprintf(&b, "layer-sha256 %x\n", m.LayerSHA256)
	fmt.Fprintln(&b, "program-offset", m.ProgramOffset)
	fmt.Fprintln(&b, "program-size", m.ProgramSize)
	fmt.Fprintf(&b, "program-sha256 %x\n", m.ProgramSHA256)
	fmt.Fprintln(&b, "chunks", len(m.Chunks))
	for i, c := range m.Chunks {
		fmt.Fprintf(&b, "chunk %02d %d %x\n", i, c.Size, c.SHA256)
	}
	return b.Bytes()
}

// ParseManifest parses a manifest strictly: it accepts only what [Manifest.Bytes] returns. Errors
// name the line.
func ParseManifest(data []byte) (*Manifest, error) {
	if len(data) > MaxManifestSize {
		return nil, fmt.Errorf("manifest has %d bytes: must have at most %d", len(data), MaxManifestSize)
	}
	p := manifestParser{rest: string(data)}
	p.words(manifestTitle, 0)
	m := &Manifest{
		Program:       Program{Name: p.name("program"), Architecture: p.name("architecture")},
		LayerSize:     p.number("layer-size", 1, MaxChunks*maxChunkSize),
		LayerSHA256:   p.sum("layer-sha256"),
		ProgramOffset: p.number("program-offset", 0, maxProgramOffset),
		ProgramSize:   p.number("program-size", 1, MaxProgramSize),
		ProgramSHA256: p.sum("program-sha256"),
		Chunks:        make([]Chunk, p.number("chunks", 1, MaxChunks)),
	}
	total := 0
	for i := range m.Chunks {
		m.Chunks[i] = p.chunk(i)
		total += m.Chunks[i].Size
	}
	switch {
	case p.err != nil:
		return nil, p.err
	case p.rest != "":
		return nil, fmt.Errorf("manifest continues after its last chunk: %.40q", p.rest)
	case total != m.LayerSize:
		return nil, fmt.Errorf("manifest: layer-size is %d, the chunks add up to %d", m.LayerSize, total)
	}
	return m, nil
}

// manifestParser parses a manifest line by line. After the first error it returns only zero values.
type manifestParser struct {
	rest string
	line int
	err  error
}

func (p *manifestParser) fail(format string, args ...any) {
	if p.err == nil {
		p.err = fmt.Errorf("manifest line %d: %s", p.line, fmt.Sprintf(format, args...))
	}
}

// words returns the count words after the key on the next line.
func (p *manifestParser) words(key string, count int) []string {
	p.line++
	line, rest, ended := strings.Cut(p.rest, "\n")
	words, found := strings.CutPrefix(line, key)
	fields := strings.Split(words, " ")
	if !ended || !found || fields[0] != "" || len(fields) != 1+count {
		p.fail("%.100q: must be %q and %d words", line, key, count)
	}
	if p.err != nil {
		return make([]string, count)
	}
	p.rest = rest
	return fields[1:]
}

func (p *manifestParser) name(key string) string {
	name := p.words(key, 1)[0]
	if !nameForm.MatchString(name) {
		p.fail("%s %.40q: must be 1 to 32 of a-z, 0-9 and '-'", key, name)
	}
	return name
}

func (p *manifestParser) number(key string, low, high int) int {
	return p.parseNumber(key, p.words(key, 1)[0], low, high)
}

func (p *manifestParser) sum(key string) [sha256.Size]byte {
	return p.parseSum(key, p.words(key, 1)[0])
}

func (p *manifestParser) chunk(index int) Chunk {
	key := fmt.Sprintf("chunk %02d", index)
	words := p.words(key, 2)
	return Chunk{Size: p.parseNumber(key, words[0], 1, maxChunkSize), SHA256: p.parseSum(key, words[1])}
}

var numberForm = regexp.MustCompile(`^(0|[1-9][0-9]{0,9})$`)

func (p *manifestParser) parseNumber(key, word string, low, high int) int {
	number, err := strconv.Atoi(word)
	if !numberForm.MatchString(word) || err != nil || number < low || number > high {
		p.fail("%s %.40q: must be a number from %d to %d without leading zeros", key, word, low, high)
		return 0
	}
	return number
}

func (p *manifestParser) parseSum(key, word string) (sum [sha256.Size]byte) {
	decoded, err := hex.DecodeString(word)
	if err != nil || len(decoded) != len(sum) || word != strings.ToLower(word) {
		p.fail("%s %.80q: must be 64 lower-case hexadecimal digits", key, word)
		return sum
	}
	return [sha256.Size]byte(decoded)
}
