// Package meter displays the progress of image transfers on a terminal or in a log.
package meter

import (
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/term"

	"github.com/zarf-dev/zarf-registry/internal/api/space"
	"github.com/zarf-dev/zarf-registry/internal/images"
	"github.com/zarf-dev/zarf-registry/internal/images/graph"
	"github.com/zarf-dev/zarf-registry/internal/logging"
)

const (
	// barWidth is the number of characters inside the bar.
	barWidth = 20
	// barPause is the minimum time between redraws of the bar. Faster changes are not visible.
	barPause = 100 * time.Millisecond
	// linePause is the minimum time between progress lines without a terminal.
	linePause = 10 * time.Second
	// rateSpan is roughly the time over which the rate is averaged: long enough to be readable, and short
	// enough to show a link that became slow.
	rateSpan = 3 * time.Second
	// maxLeft is the longest remaining time that is shown. Longer estimates are not reliable.
	maxLeft = 100 * time.Hour
)

// Meter shows the progress of a run over images: on a terminal, one bar with images, bytes, rate and
// remaining time; otherwise, a line every few seconds; and a line for each completed image. It is also an
// [io.Writer] for log lines on the same terminal, which appear above the bar. It is safe for concurrent use.
type Meter struct {
	w        io.Writer
	terminal bool
	width    func() int
	now      func() time.Time

	mu    sync.Mutex
	begun time.Time
	last  images.Progress
	rate  float64   // bytes per second, 0 while not known
	moved time.Time // when rate was computed
	shown time.Time
	drawn bool // the terminal's current line has a bar

	images                  int // completed
	sent, received, skipped int64
}

// New returns a meter that writes to w, which may be a terminal.
func New(w io.Writer) *Meter {
	m := &Meter{w: w, now: time.Now}
	if file, ok := w.(*os.File); ok && term.IsTerminal(int(file.Fd())) {
		m.terminal = true
		m.width = func() int {
			width, _, err := term.GetSize(int(file.Fd()))
			if err != nil || width <= 0 {
				return 80
			}
			return width
		}
	}
	return m
}

// Update shows progress. It has the signature of [images.Options.Progress].
func (m *Meter) Update(p images.Progress) {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := m.now()
	if m.begun.IsZero() {
		m.begun, m.moved, m.last = now, now, p
		if !m.terminal {
			m.shown = now
			fmt.Fprintf(m.w, "%s, %s\n", imageCount(p.Images), space.FormatBytes(p.Total))
		}
	}
	pause := linePause
	if m.terminal {
		pause = barPause
	}
	if now.Sub(m.shown) < pause {
		return
	}
	m.measure(p, now)
	m.shown = now
	if !m.terminal {
		fmt.Fprintf(m.w, "%d of %s, %s\n", p.ImagesDone, imageCount(p.Images), m.figures(p))
		return
	}
	m.erase()
	m.drawn = true
	fmt.Fprint(m.w, m.bar(p, m.width()-1))
}

// Done shows the result of a completed image.
func (m *Meter) Done(r images.Result) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.over()
	m.images++
	m.sent += r.BytesSent
	m.received += r.BytesReceived
	m.skipped += r.BytesSkipped
	fmt.Fprintf(m.w, "%s: %s, %.1f s, %s\n", logging.Printable(r.Reference),
		moved(r.BytesSent, r.BytesReceived, r.BytesSkipped), r.Duration.Seconds(), r.Digest)
	if len(r.Omitted) > 0 {
		fmt.Fprintf(m.w, "  without %s, which the source does not hold\n",
			logging.Printable(strings.ReplaceAll(graph.Platforms(r.Omitted).String(), ",", ", ")))
	}
}

// End clears the bar and, after several images, prints a summary.
func (m *Meter) End() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.over()
	if m.images > 1 {
		fmt.Fprintf(m.w, "%s: %s, %.1f s\n", imageCount(m.images), moved(m.sent, m.received, m.skipped),
			m.now().Sub(m.begun).Seconds())
	}
}

// Write replaces the bar with lines; the next [Meter.Update] draws it again.
func (m *Meter) Write(lines []byte) (int, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.over()
	return m.w.Write(lines)
}

func (m *Meter) erase() {
	if m.drawn {
		// Move to the start of the line and clear it.
		fmt.Fprint(m.w, "\r\x1b[K")
		m.drawn = false
	}
}

// over clears the bar. The next update draws it again without a pause.
func (m *Meter) over() {
	if m.drawn {
		m.erase()
		m.shown = time.Time{}
	}
}

// measure updates the rate, a moving average in which older values count less.
func (m *Meter) measure(p images.Progress, now time.Time) {
	passed := now.Sub(m.moved)
	if passed <= 0 {
		return
	}
	current := float64(p.Done-m.last.Done) / passed.Seconds()
	weight := min(1, passed.Seconds()/rateSpan.Seconds())
	if m.rate == 0 {
		weight = 1
	}
	m.rate += (current - m.rate) * weight
	m.last, m.moved = p, now
}

// bar draws skipped bytes as - and then transferred ones as =. It cuts the line at width; the least
// important part is on the right.
func (m *Meter) bar(p images.Progress, width int) string {
	share := func(part int64) int {
		if p.Total <= 0 {
			return barWidth
		}
		return int(min(1, float64(part)/float64(p.Total)) * barWidth)
	}
	skipped, all := share(p.Skipped), share(p.Skipped+p.Done)
	line := fmt.Sprintf("%d/%d [%s%s%s] %s", p.ImagesDone, p.Images,
		strings.Repeat("-", skipped), strings.Repeat("=", all-skipped), strings.Repeat(" ", barWidth-all), m.figures(p))
	if p.Image != "" {
		line += "  " + logging.Printable(p.Image)
	}
	runes := []rune(line)
	switch {
	case len(runes) <= width:
		return line
	case width < 2:
		return ""
	}
	return string(runes[:width-1]) + "…"
}

func (m *Meter) figures(p images.Progress) string {
	s := fmt.Sprintf("%s of %s", space.FormatBytes(p.Done+p.Skipped), space.FormatBytes(p.Total))
	if m.rate >= 1 {
		s += fmt.Sprintf(", %s/s", space.FormatBytes(int64(m.rate)))
		if left := float64(p.Total-p.Done-p.Skipped) / m.rate; left < maxLeft.Seconds() {
			s += fmt.Sprintf(", %s left", (time.Duration(left * float64(time.Second))).Round(time.Second))
		}
	}
	if p.Skipped > 0 {
		s += fmt.Sprintf(", %s already there", space.FormatBytes(p.Skipped))
	}
	return s
}

// moved formats an image's transferred and skipped bytes.
func moved(sent, received, skipped int64) string {
	var parts []string
	for _, part := range []struct {
		n    int64
		what string
	}{{received, "received"}, {sent, "sent"}, {skipped, "already there"}} {
		if part.n > 0 {
			parts = append(parts, space.FormatBytes(part.n)+" "+part.what)
		}
	}
	if len(parts) == 0 {
		return space.FormatBytes(0)
	}
	return strings.Join(parts, ", ")
}

func imageCount(images int) string {
	if images == 1 {
		return "1 image"
	}
	return fmt.Sprintf("%d images", images)
}
