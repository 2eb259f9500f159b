package main

import (
	"cmp"
	"context"
	"crypto/sha256"
	"debug/buildinfo"
	"debug/macho"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"github.com/zarf-dev/zarf-registry/internal/images"
)

// suffixSBOM is the suffix of bills of materials
// (https://cyclonedx.org/specification/overview/#recognized-file-patterns).
const suffixSBOM = ".cdx.json"

// component is a program or an image with its parts.
type component struct {
	kind    string // application, container or library
	name    string
	version string
	purl    string
	// digest is the SHA-256 hash of a program's file or of an image's index.
	digest  string
	arch    string
	goTool  string // version of the toolchain; empty for C programs
	modules []*debug.Module
	embeds  []*component
}

// programComponent describes a program. It reads the modules from the build information in the file, which
// lists only those that are linked.
func programComponent(name, platform, file, version string) (*component, error) {
	system, arch, _ := strings.Cut(platform, "/")
	f, err := os.Open(file)
	if err != nil {
		return nil, fmt.Errorf("%w (make images builds it)", err)
	}
	defer func() { _ = f.Close() }()
	sum := sha256.New()
	if _, err := io.Copy(sum, f); err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	c := &component{
		kind: "application", name: name, version: version, arch: arch, digest: hex.EncodeToString(sum.Sum(nil)),
		purl: "pkg:generic/zarf-registry/" + name + "@" + url.PathEscape(version) + "?arch=" + arch + "&os=" + system,
	}
	if slices.Contains(programsInC, name) {
		return c, nil
	}
	info, err := buildinfo.Read(f)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	if system == "darwin" {
		if err := checkDarwin(f, arch); err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
	}
	c.goTool = info.GoVersion
	for _, m := range info.Deps {
		if m.Replace != nil {
			m = m.Replace
		}
		if m.Sum == "" {
			return nil, fmt.Errorf("%s: module %s has no checksum: remove its replace directive from go.mod",
				file, m.Path)
		}
		c.modules = append(c.modules, m)
	}
	slices.SortFunc(c.modules, func(a, b *debug.Module) int { return cmp.Compare(a.Path, b.Path) })
	if len(c.modules) == 0 {
		return nil, fmt.Errorf("%s has no build information", file)
	}
	return c, nil
}

// checkDarwin checks what macOS requires of a program: this machine cannot run it.
func checkDarwin(program io.ReaderAt, arch string) error {
	f, err := macho.NewFile(program)
	if err != nil {
		return err
	}
	if want := map[string]macho.Cpu{"amd64": macho.CpuAmd64, "arm64": macho.CpuArm64}[arch]; f.Type != macho.TypeExec ||
		f.Cpu != want {
		return fmt.Errorf("it is a Mach-O file of type %v for %v, not a program for %v", f.Type, f.Cpu, want)
	}
	// Macs with Apple silicon run signed programs only; Go's linker adds an ad-hoc signature.
	const codeSignature = 0x1d // LC_CODE_SIGNATURE
	if arch == "arm64" && !slices.ContainsFunc(f.Loads, func(l macho.Load) bool {
		return f.ByteOrder.Uint32(l.Raw()) == codeSignature
	}) {
		return errors.New("it has no code signature")
	}
	return nil
}

// programsInC are built from their own source only, without a C library.
var programsInC = []string{"loader", "probe"}

// imageComponent describes the image in an archive.
func (r release) imageComponent(name, archive string) (_ *component, err error) {
	src, err := images.Open(context.Background(), archive)
	if err != nil {
		return nil, fmt.Errorf("%w (make images builds it)", err)
	}
	defer func() { err = errors.Join(err, src.Close()) }()
	items, err := src.Items("")
	if err != nil {
		return nil, err
	}
	want := images.NewSpec(r.registry, name, r.version).Reference
	if len(items) != 1 || items[0].Reference != want {
		return nil, fmt.Errorf("%s does not hold %s: run make images again with the same VERSION and REGISTRY", archive, want)
	}
	digest := items[0].Descriptor.Digest
	repository := strings.TrimSuffix(want, ":"+r.version)
	return &component{
		kind: "container", name: name, version: r.version, digest: digest.Encoded(),
		purl: "pkg:oci/" + name + "@" + url.QueryEscape(digest.String()) + "?repository_url=" + url.QueryEscape(repository) +
			"&tag=" + url.QueryEscape(r.version),
	}, nil
}

// The fields of CycloneDX 1.6 that are used (https://cyclonedx.org/docs/1.6/json/).
type (
	bom struct {
		Format       string          `json:"bomFormat"`
		SpecVersion  string          `json:"specVersion"`
		Serial       string          `json:"serialNumber"`
		Version      int             `json:"version"`
		Metadata     bomMetadata     `json:"metadata"`
		Components   []bomComponent  `json:"components"`
		Dependencies []bomDependency `json:"dependencies"`
	}
	bomMetadata struct {
		Timestamp string       `json:"timestamp"`
		Component bomComponent `json:"component"`
	}
	bomComponent struct {
		Type       string        `json:"type"`
		Ref        string        `json:"bom-ref"`
		Name       string        `json:"name"`
		Version    string        `json:"version,omitempty"`
		PURL       string        `json:"purl,omitempty"`
		Licenses   []bomLicense  `json:"licenses,omitempty"`
		Hashes     []bomHash     `json:"hashes,omitempty"`
		Properties []bomProperty `json:"properties,omitempty"`
	}
	bomLicense struct {
		License struct {
			ID string `json:"id"`
		} `json:"license"`
	}
	bomHash struct {
		Algorithm string `json:"alg"`
		Content   string `json:"content"`
	}
	bomProperty struct {
		Name  string `json:"name"`
		Value string `json:"value"`
	}
	bomDependency struct {
		Ref       string   `json:"ref"`
		DependsOn []string `json:"dependsOn"`
	}
)

func (c *component) bom() bomComponent {
	b := bomComponent{
		Type: c.kind, Ref: c.purl, Name: c.name, Version: c.version, PURL: c.purl,
		Licenses: make([]bomLicense, 1), Hashes: []bomHash{{"SHA-256", c.digest}},
	}
	b.Licenses[0].License.ID = "Apache-2.0"
	if strings.HasPrefix(c.purl, "pkg:generic/") {
		b.PURL = "" // generic package URLs identify nothing outside this document
	}
	return b
}

// parts returns the parts of c without duplicates: embedded programs, and the modules and toolchain of
// each program.
func (c *component) parts() (parts []bomComponent, dependencies []bomDependency) {
	seen := map[string]bool{}
	var walk func(c *component)
	walk = func(c *component) {
		if seen[c.purl] {
			return
		}
		seen[c.purl] = true
		d := bomDependency{Ref: c.purl, DependsOn: []string{}}
		add := func(p bomComponent) {
			d.DependsOn = append(d.DependsOn, p.Ref)
			if !seen[p.Ref] {
				seen[p.Ref] = true
				parts = append(parts, p)
				dependencies = append(dependencies, bomDependency{Ref: p.Ref, DependsOn: []string{}})
			}
		}
		if c.goTool != "" {
			version := strings.TrimPrefix(c.goTool, "go")
			add(bomComponent{Type: "library", Ref: "pkg:golang/std@" + version, Name: "std", Version: version,
				PURL: "pkg:golang/std@" + version})
		}
		for _, m := range c.modules {
			purl := modulePURL(m)
			add(bomComponent{Type: "library", Ref: purl, Name: m.Path, Version: m.Version, PURL: purl,
				// Not in Hashes, because it is not the hash of a file.
				Properties: []bomProperty{{"zarf-registry:go.sum", m.Sum}}})
		}
		for _, embedded := range c.embeds {
			d.DependsOn = append(d.DependsOn, embedded.purl)
			if !seen[embedded.purl] {
				parts = append(parts, embedded.bom())
			}
			walk(embedded)
		}
		dependencies = append(dependencies, d)
	}
	walk(c)
	slices.SortFunc(parts, func(a, b bomComponent) int { return cmp.Compare(a.Ref, b.Ref) })
	slices.SortFunc(dependencies, func(a, b bomDependency) int { return cmp.Compare(a.Ref, b.Ref) })
	return parts, dependencies
}

func modulePURL(m *debug.Module) string {
	return "pkg:golang/" + m.Path + "@" + url.PathEscape(m.Version)
}

func (r release) writeSBOM(name string, c *component) error {
	b := bom{Format: "CycloneDX", SpecVersion: "1.6", Version: 1,
		Metadata: bomMetadata{Timestamp: r.source.time.Format(time.RFC3339), Component: c.bom()}}
	b.Components, b.Dependencies = c.parts()
	// The serial number is derived from the content, so that it is reproducible.
	content, err := json.Marshal(b)
	if err != nil {
		return err
	}
	id := sha256.Sum256(content)
	id[6], id[8] = id[6]&0x0f|0x80, id[8]&0x3f|0x80 // version 8 of RFC 9562: custom bits
	b.Serial = fmt.Sprintf("urn:uuid:%x-%x-%x-%x-%x", id[:4], id[4:6], id[6:8], id[8:10], id[10:16])
	if content, err = json.MarshalIndent(b, "", "  "); err != nil {
		return err
	}
	return writeFile(name, append(content, '\n'))
}
