package loader_test

import (
	"slices"
	"testing"
)

// A bitWriter writes a deflate stream by hand, including streams that no compressor creates.
type bitWriter struct {
	data []byte
	used int // bits used in the last byte
}

// bits writes a number, lowest bit first: RFC 1951, 3.1.1.
func (w *bitWriter) bits(value, count int) *bitWriter {
	for i := range count {
		if w.used%8 == 0 {
			w.data = append(w.data, 0)
			w.used = 0
		}
		w.data[len(w.data)-1] |= byte(value>>i&1) << w.used
		w.used++
	}
	return w
}

// code writes a Huffman code, highest bit first.
func (w *bitWriter) code(value, count int) *bitWriter {
	for i := count - 1; i >= 0; i-- {
		w.bits(value>>i&1, 1)
	}
	return w
}

func (w *bitWriter) bytes(data ...byte) *bitWriter {
	w.data = append(w.data, data...)
	w.used = 8
	return w
}

// fixed starts the last block, with the fixed codes, and writes literals.
func fixed(literals string) *bitWriter {
	w := new(bitWriter).bits(1, 1).bits(1, 2)
	for _, b := range []byte(literals) {
		w.code(0x30+int(b), 8)
	}
	return w
}

// A length is a symbol of the code for code lengths: 0 to 15, or 16 to 18 with a repeat count.
type length struct{ symbol, repeat int }

// dynamic starts the last block, with dynamic codes. The code for code lengths contains all 19
// symbols: 0 to 12 with 4 bits, the others with 5.
func dynamic(literals, distances int, lengths ...length) *bitWriter {
	w := new(bitWriter).bits(1, 1).bits(2, 2).bits(literals-257, 5).bits(distances-1, 5).bits(19-4, 4)
	for _, symbol := range []int{16, 17, 18, 0, 8, 7, 9, 6, 10, 5, 11, 4, 12, 3, 13, 2, 14, 1, 15} {
		if symbol < 13 {
			w.bits(4, 3)
		} else {
			w.bits(5, 3)
		}
	}
	for _, l := range lengths {
		if l.symbol < 13 {
			w.code(l.symbol, 4)
		} else {
			w.code(26+l.symbol-13, 5)
		}
		switch l.symbol {
		case 16:
			w.bits(l.repeat-3, 2)
		case 17:
			w.bits(l.repeat-3, 3)
		case 18:
			w.bits(l.repeat-11, 7)
		}
	}
	return w
}

func TestHandWrittenDeflateStreams(t *testing.T) {
	p := startPeer(t)
	stored := func(size, complement uint16) *bitWriter {
		return new(bitWriter).bits(1, 1).bits(0, 2).bits(0, 5).bits(int(size), 16).bits(int(complement), 16)
	}
	// The literal code has 'a' (bit 0) and the end of the block (bit 1). The distances follow.
	aAndEnd := []length{{18, 97}, {1, 0}, {18, 138}, {18, 20}, {1, 0}}
	// 'a' (code 0), the end of the block (10) and length 3 (11).
	aEndAndLength := []length{{18, 97}, {1, 0}, {18, 138}, {18, 20}, {2, 0}, {2, 0}}

	for name, test := range map[string]struct {
		stream *bitWriter
		want   string
		accept bool
	}{
		"an empty fixed block": {fixed("").code(0, 7), "", true},
		"literals":             {fixed("abc").code(0, 7), "abc", true},
		"a match over itself":  {fixed("ab").code(3, 7).code(1, 5).code(0, 7), "abababa", true},
		"length 258 as 227 and 31": {
			fixed("a").code(0xc0+284-280, 8).bits(31, 5).code(0, 5).code(0, 7), string(slices.Repeat([]byte("a"), 259)), true,
		},
		"length 258 as 258": {
			fixed("a").code(0xc0+285-280, 8).code(0, 5).code(0, 7), string(slices.Repeat([]byte("a"), 259)), true,
		},
		"an undefined length":               {fixed("a").code(0xc0+286-280, 8).code(0, 5).code(0, 7), "", false},
		"another undefined length":          {fixed("a").code(0xc0+287-280, 8).code(0, 5).code(0, 7), "", false},
		"an undefined distance":             {fixed("a").code(1, 7).code(30, 5).code(0, 7), "", false},
		"another undefined distance":        {fixed("a").code(1, 7).code(31, 5).code(0, 7), "", false},
		"a match before the start":          {fixed("a").code(1, 7).code(1, 5).code(0, 7), "", false},
		"a match at the start":              {fixed("").code(1, 7).code(0, 5).code(0, 7), "", false},
		"the longest distance at the start": {fixed("a").code(1, 7).code(29, 5).bits(8191, 13).code(0, 7), "", false},
		"a block without its end":           {fixed("abc"), "", false},
		"an undefined block type":           {new(bitWriter).bits(1, 1).bits(3, 2), "", false},
		"nothing":                           {new(bitWriter), "", false},
		"stored":                            {stored(3, 0xfffc).bytes('a', 'b', 'c'), "abc", true},
		"stored nothing":                    {stored(0, 0xffff), "", true},
		"stored 65535 bytes":                {stored(0xffff, 0).bytes(make([]byte, 0xffff)...), string(make([]byte, 0xffff)), true},
		"stored with a damaged length":      {stored(3, 0xfffd).bytes('a', 'b', 'c'), "", false},
		"a dynamic block":                   {dynamic(257, 1, append(aAndEnd, length{0, 0})...).code(0, 1).code(0, 1).code(1, 1), "aa", true},
		"no distance code, and no match":    {dynamic(257, 1, append(aAndEnd, length{0, 0})...).code(1, 1), "", true},
		"no distance code, and a match": {
			dynamic(258, 1, append(aEndAndLength, length{0, 0})...).code(0, 1).code(3, 2).code(0, 1).code(2, 2), "", false,
		},
		"one distance code of one bit": {
			dynamic(258, 1, append(aEndAndLength, length{1, 0})...).code(0, 1).code(3, 2).code(0, 1).code(2, 2), "aaaa", true,
		},
		"the unused bit of a single distance code": {
			dynamic(258, 1, append(aEndAndLength, length{1, 0})...).code(0, 1).code(3, 2).code(1, 1).code(2, 2), "", false,
		},
		"one distance code of two bits": {
			dynamic(258, 1, append(aEndAndLength, length{2, 0})...).code(0, 1).code(3, 2).code(0, 2).code(2, 2), "", false,
		},
		"two distance codes that leave one": {
			dynamic(258, 2, append(aEndAndLength, length{1, 0}, length{2, 0})...).code(0, 1).code(2, 2), "", false,
		},
		"three distance codes of one bit": {
			dynamic(258, 3, append(aEndAndLength, length{1, 0}, length{1, 0}, length{1, 0})...).code(0, 1).code(2, 2), "", false,
		},
		"codes of 15 bits": {
			dynamic(
				258, 15, length{18, 97}, length{1, 0}, length{18, 138}, length{18, 20}, length{2, 0}, length{2, 0}, length{1, 0},
				length{2, 0}, length{3, 0}, length{4, 0}, length{5, 0}, length{6, 0}, length{7, 0}, length{8, 0}, length{9, 0},
				length{10, 0}, length{11, 0}, length{12, 0}, length{13, 0}, length{14, 0}, length{14, 0},
			).code(0, 1).code(3, 2).code(0, 1).code(2, 2),
			"aaaa",
			true,
		},
		"only the end of the block": {
			dynamic(257, 1, length{18, 138}, length{18, 118}, length{1, 0}, length{0, 0}).code(0, 1), "", true,
		},
		"the unused bit of a single code": {
			dynamic(257, 1, length{18, 138}, length{18, 118}, length{1, 0}, length{0, 0}).code(1, 1), "", false,
		},
		"no code for the end of the block": {
			dynamic(257, 1, length{18, 97}, length{1, 0}, length{1, 0}, length{18, 138}, length{18, 19}, length{0, 0}, length{
				0, 0,
			}).code(0, 1),
			"",
			false,
		},
		"no codes at all": {dynamic(257, 1, length{18, 138}, length{18, 120}).code(0, 1), "", false},
		"too many literals of one bit": {
			dynamic(257, 1, length{1, 0}, length{16, 6}, length{18, 138}, length{18, 113}).code(0, 1), "", false,
		},
		"an incomplete literal code": {
			dynamic(257, 1, length{18, 97}, length{2, 0}, length{18, 138}, length{18, 20}, length{2, 0}, length{
				0, 0,
			}).code(1, 2),
			"",
			false,
		},
		"287 literals":              {dynamic(287, 1, append(slices.Clone(aAndEnd), length{18, 31})...).code(1, 1), "", false},
		"31 distances":              {dynamic(257, 31, append(slices.Clone(aAndEnd), length{18, 31})...).code(1, 1), "", false},
		"a repetition at the start": {dynamic(257, 1, length{16, 3}, length{18, 138}, length{18, 117}).code(0, 1), "", false},
		"a repetition beyond the end": {
			dynamic(257, 1, append(slices.Clone(aAndEnd), length{17, 3})...).code(1, 1), "", false,
		},
		"a repetition from literals into distances": {
			dynamic(258, 2, length{18, 138}, length{18, 118}, length{1, 0}, length{16, 3}).code(0, 1), "", true,
		},
		"zeros from literals into distances": {
			dynamic(258, 2, length{18, 97}, length{1, 0}, length{18, 138}, length{18, 20}, length{1, 0}, length{
				17, 3,
			}).code(1, 1),
			"",
			true,
		},
	} {
		t.Run(name, func(t *testing.T) {
			stream := gzipOf(test.stream.data, []byte(test.want))
			for _, pieceSize := range []int{1, 3, len(stream)} {
				compareInflate(t, p, stream, pieceSize)
				accepted, response := p.request(t, 'i', pieceSize, stream)
				if accepted != test.accept || accepted && string(response) != test.want {
					t.Errorf("accepted = %v, %q", accepted, response)
				}
			}
		})
	}
}
