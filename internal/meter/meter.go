package meter

import (
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/term"

	"github.com/zarf-dev/zarf-registry/internal/images"
)

const (
	// barWidth is how many characters the bar itself has.
	barWidth = 20
	// barPause is between two redraws of the bar: more often is not seen.
	barPause = 100 * time.Millisecond
	// linePause is between two lines about the run where there is no terminal.
	linePause = 10 * time.Second
	// rateSpan is the time that the rate is averaged over, roughly: long enough to
	// be readable, and short enough to show a link that got slow.
	rateSpan = 3 * time.Second
	// maxLeft is the longest time left that is told: what takes longer is not known
	// that well.
	maxLeft = 100 * time.Hour
)

// Meter shows people how far a run over images is: one bar for all of it with
// images, bytes, rate and time left on a terminal, a line now and then elsewhere,
// and a line for each image that is done. It is also an [io.Writer] for the log
// lines of the same terminal, which then stand above the bar. Its methods may be
// called concurrently.
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
	drawn bool // there is a bar in the terminal's line

	images                  int // that are done
	sent, received, skipped int64
}

// New returns a meter that writes to w, which is a terminal or not.
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

// Update shows progress. It is made for a run's options.
func (m *Meter) Update(p images.Progress) {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := m.now()
	if m.begun.IsZero() {
		m.begun, m.moved, m.last = now, now, p
		if !m.terminal {
			m.shown = now
			fmt.Fprintf(m.w, "%s%s\n", imageCount("", p), FormatBytes(p.Total))
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
		fmt.Fprintf(m.w, "%s%s\n", imageCount(fmt.Sprintf("%d of ", p.ImagesDone), p), m.figures(p))
		return
	}
	m.erase()
	m.drawn = true
	fmt.Fprint(m.w, m.bar(p, m.width()-1))
}

// Done shows that an image is where it should be.
func (m *Meter) Done(r images.Result) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.over()
	m.images++
	m.sent += r.BytesSent
	m.received += r.BytesReceived
	m.skipped += r.BytesSkipped
	fmt.Fprintf(m.w, "%s: %s, %.1f s, %s\n", r.Reference, moved(r.BytesSent, r.BytesReceived, r.BytesSkipped),
		r.Duration.Seconds(), r.Digest)
	if len(r.Omitted) > 0 {
		fmt.Fprintf(m.w, "  without %s, which the source does not hold\n",
			strings.ReplaceAll(images.Platforms(r.Omitted).String(), ",", ", "))
	}
}

// End clears the bar and, after several images, sums up.
func (m *Meter) End() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.over()
	if m.images > 1 {
		fmt.Fprintf(m.w, "%s: %s, %.1f s\n", formatImageCount(m.images), moved(m.sent, m.received, m.skipped),
			m.now().Sub(m.begun).Seconds())
	}
}

// Write writes lines where the bar was; the next [Meter.Update] draws it anew.
func (m *Meter) Write(lines []byte) (int, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.over()
	return m.w.Write(lines)
}

func (m *Meter) erase() {
	if m.drawn {
		// To the line's beginning, and clear what is right of it.
		fmt.Fprint(m.w, "\r\x1b[K")
		m.drawn = false
	}
}

// over clears the bar, to be drawn again as soon as there is something to tell.
func (m *Meter) over() {
	if m.drawn {
		m.erase()
		m.shown = time.Time{}
	}
}

// measure computes the rate, in which what is older counts less and less.
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

// bar draws what was transferred as =, and what was there, before it, as -. What
// does not fit into width is cut from the right, where the least important is.
func (m *Meter) bar(p images.Progress, width int) string {
	share := func(part int64) int {
		if p.Total <= 0 {
			return barWidth
		}
		return int(min(1, float64(part)/float64(p.Total)) * barWidth)
	}
	skipped, all := share(p.Skipped), share(p.Skipped+p.Done)
	line := ""
	if p.Images > 0 {
		line = fmt.Sprintf("%d/%d ", p.ImagesDone, p.Images)
	}
	line += fmt.Sprintf("[%s%s%s] %s",
		strings.Repeat("-", skipped), strings.Repeat("=", all-skipped), strings.Repeat(" ", barWidth-all), m.figures(p))
	if p.Image != "" {
		line += "  " + p.Image
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
	s := fmt.Sprintf("%s of %s", FormatBytes(p.Done+p.Skipped), FormatBytes(p.Total))
	if m.rate >= 1 {
		s += fmt.Sprintf(", %s/s", FormatBytes(int64(m.rate)))
		if left := float64(p.Total-p.Done-p.Skipped) / m.rate; left < maxLeft.Seconds() {
			s += fmt.Sprintf(", %s left", (time.Duration(left * float64(time.Second))).Round(time.Second))
		}
	}
	if p.Skipped > 0 {
		s += fmt.Sprintf(", %s already there", FormatBytes(p.Skipped))
	}
	return s
}

// moved says what became of an image's bytes.
func moved(sent, received, skipped int64) string {
	var parts []string
	for _, part := range []struct {
		n    int64
		what string
	}{{received, "received"}, {sent, "sent"}, {skipped, "already there"}} {
		if part.n > 0 {
			parts = append(parts, FormatBytes(part.n)+" "+part.what)
		}
	}
	if len(parts) == 0 {
		return FormatBytes(0)
	}
	return strings.Join(parts, ", ")
}

// among says what a line in a log is about: all images, or so many of them. A run
// over something else has none.
func imageCount(part string, p images.Progress) string {
	if p.Images == 0 {
		return ""
	}
	return part + formatImageCount(p.Images) + ", "
}

func formatImageCount(images int) string {
	if images == 1 {
		return "1 image"
	}
	return fmt.Sprintf("%d images", images)
}

// FormatBytes writes a number of bytes as people read it, in powers of ten:
// 12.3 MB.
func FormatBytes(n int64) string {
	if n < 1000 {
		return fmt.Sprintf("%d B", n)
	}
	value, unit := float64(n)/1000, 0
	// 999.95 would be written as 1000.0.
	for value >= 999.95 && unit < len("kMGTPE")-1 {
		value /= 1000
		unit++
	}
	return fmt.Sprintf("%.1f %cB", value, "kMGTPE"[unit])
}
