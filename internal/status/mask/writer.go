package mask

import (
	"bytes"
	"io"
	"strings"
)

const (
	// maxLine is the length in bytes of the longest line that is shown. Those of logs, and of the files of a
	// bundle, are far shorter.
	maxLine = 1 << 20
	// maxKeyLines is how many lines are dropped after the beginning of a private key whose end is missing. The
	// PEM form of an RSA key of 16384 bits has 200.
	maxKeyLines = 250
)

// tooLong replaces a line longer than maxLine: a secret could be cut in two by any shorter part.
const tooLong = "(a line of more than 1 MiB is not shown)"

// Writer masks what is written to it, line by line, no matter how it is divided into writes. Close must be
// called after the last write. It is not safe for concurrent use.
type Writer struct {
	m    *Masker
	w    io.Writer
	rest []byte // a line without its end
	cut  bool   // rest is dropped, because the line is too long
	key  int    // how many lines may still belong to a private key
}

// Writer returns a Writer that writes to w, which is not closed.
func (m *Masker) Writer(w io.Writer) *Writer { return &Writer{m: m, w: w} }

// Write implements io.Writer. It keeps the last line until its end is written. The error is that of the
// underlying writer.
func (w *Writer) Write(p []byte) (int, error) {
	written := len(p)
	for {
		i := bytes.IndexByte(p, '\n')
		if i < 0 {
			w.add(p)
			return written, nil
		}
		w.add(p[:i])
		p = p[i+1:]
		if err := w.flush("\n"); err != nil {
			return 0, err
		}
	}
}

// Close writes the last line, if it does not end with a line break.
func (w *Writer) Close() error {
	if len(w.rest) == 0 && !w.cut {
		return nil
	}
	return w.flush("")
}

func (w *Writer) add(p []byte) {
	if w.cut || len(w.rest)+len(p) > maxLine {
		w.rest, w.cut = w.rest[:0], true
		return
	}
	w.rest = append(w.rest, p...)
}

// flush writes the line in rest.
func (w *Writer) flush(end string) error {
	line, cut := string(w.rest), w.cut
	w.rest, w.cut = w.rest[:0], false
	if cut {
		line = tooLong
	} else {
		var shown bool
		if line, shown = w.privateKeys(line); !shown {
			return nil
		}
		line = w.m.line(line)
	}
	_, err := io.WriteString(w.w, line+end)
	return err
}

// privateKeys masks private keys in PEM form, which may continue in further lines. It returns false for a line
// that is only a part of one.
func (w *Writer) privateKeys(line string) (masked string, shown bool) {
	var out strings.Builder
	for {
		if w.key > 0 {
			end := endKey.FindStringIndex(line)
			if end == nil {
				w.key--
				return out.String(), out.Len() > 0
			}
			w.key = 0
			if line = line[end[1]:]; line == "" {
				return out.String(), out.Len() > 0
			}
		}
		begin := beginKey.FindStringIndex(line)
		if begin == nil {
			out.WriteString(line)
			return out.String(), true
		}
		out.WriteString(line[:begin[0]] + Masked)
		line, w.key = line[begin[1]:], maxKeyLines
	}
}
