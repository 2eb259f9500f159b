package images

import (
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/term"
)

const (
	// barWidth is how many characters the bar itself has.
	barWidth = 24
	// barPause is between two redraws of the bar: more often is not seen.
	barPause = 100 * time.Millisecond
	// linePause is between two lines about one image where there is no terminal.
	linePause = 10 * time.Second
	// rateSpan is the time that the rate is averaged over, roughly: long enough to
	// be readable, and short enough to show a link that got slow.
	rateSpan = 3 * time.Second
)

// Meter shows people how far a push is: a bar with bytes, rate and time left on
// a terminal, a line now and then elsewhere, and a line for each image that is
// done. Its methods may be called concurrently, for one image after another.
type Meter struct {
	w        io.Writer
	terminal bool
	width    func() int
	now      func() time.Time

	mu    sync.Mutex
	image string
	last  Progress
	rate  float64   // bytes per second, 0 while not known
	moved time.Time // when rate was computed
	shown time.Time
	drawn bool // there is a bar in the terminal's line
}

// NewMeter returns a meter that writes to f.
func NewMeter(f *os.File) *Meter {
	return &Meter{
		w:        f,
		terminal: term.IsTerminal(int(f.Fd())),
		width: func() int {
			width, _, err := term.GetSize(int(f.Fd()))
			if err != nil || width <= 0 {
				return 80
			}
			return width
		},
		now: time.Now,
	}
}

// Update shows progress. It is made for [PushOptions.Progress].
func (m *Meter) Update(p Progress) {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := m.now()
	if p.Image != m.image || p.Sent < m.last.Sent {
		m.image, m.last, m.rate, m.moved, m.shown = p.Image, p, 0, now, time.Time{}
		if !m.terminal {
			m.shown = now
			fmt.Fprintf(m.w, "%s: %s\n", p.Image, FormatBytes(p.Total))
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
		fmt.Fprintf(m.w, "%s: %s\n", p.Image, m.figures(p))
		return
	}
	m.erase()
	m.drawn = true
	fmt.Fprint(m.w, fit(m.bar(p), m.width()-1))
}

// Done shows that an image was pushed.
func (m *Meter) Done(r Result) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.erase()
	m.image = ""
	line := fmt.Sprintf("%s: %s sent", r.Reference, FormatBytes(r.BytesSent))
	if r.BytesSkipped > 0 {
		line += fmt.Sprintf(", %s already there", FormatBytes(r.BytesSkipped))
	}
	fmt.Fprintf(m.w, "%s, %.1f s, %s\n", line, r.Duration.Seconds(), r.Digest)
	for _, p := range r.Omitted {
		fmt.Fprintf(m.w, "  without %s/%s, which the source does not hold\n", p.OS, p.Architecture)
	}
}

// Interrupt clears the bar, for a message to be written where it was.
func (m *Meter) Interrupt() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.erase()
}

func (m *Meter) erase() {
	if m.drawn {
		// To the line's beginning, and clear what is right of it.
		fmt.Fprint(m.w, "\r\x1b[K")
		m.drawn = false
	}
}

// measure computes the rate, in which what is older counts less and less.
func (m *Meter) measure(p Progress, now time.Time) {
	passed := now.Sub(m.moved)
	if passed <= 0 {
		return
	}
	current := float64(p.Sent-m.last.Sent) / passed.Seconds()
	weight := min(1, passed.Seconds()/rateSpan.Seconds())
	if m.rate == 0 {
		weight = 1
	}
	m.rate += (current - m.rate) * weight
	m.last, m.moved = p, now
}

// bar draws what was sent as =, and what was skipped, before it, as -.
func (m *Meter) bar(p Progress) string {
	share := func(part int64) int {
		if p.Total == 0 {
			return barWidth
		}
		return int(part * barWidth / p.Total)
	}
	skipped, all := share(p.Skipped), share(p.Skipped+p.Sent)
	return fmt.Sprintf("%s [%s%s%s] %s", p.Image,
		strings.Repeat("-", skipped), strings.Repeat("=", all-skipped), strings.Repeat(" ", barWidth-all), m.figures(p))
}

func (m *Meter) figures(p Progress) string {
	s := fmt.Sprintf("%s of %s", FormatBytes(p.Sent+p.Skipped), FormatBytes(p.Total))
	if p.Skipped > 0 {
		s += fmt.Sprintf(" (%s already there)", FormatBytes(p.Skipped))
	}
	if m.rate >= 1 {
		left := time.Duration(float64(p.Total-p.Sent-p.Skipped) / m.rate * float64(time.Second))
		s += fmt.Sprintf(", %s/s, %s left", FormatBytes(int64(m.rate)), left.Round(time.Second))
	}
	return s
}

// fit cuts a line in its middle, so that it stays one line and both the image's
// name and the figures are there in part.
func fit(line string, width int) string {
	runes := []rune(line)
	if len(runes) <= width || width < 8 {
		return string(runes[:min(len(runes), max(width, 0))])
	}
	// A third for the name: the figures say more.
	head := width / 3
	return string(runes[:head]) + "…" + string(runes[len(runes)-(width-head-1):])
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
