// Package terminal tells whether a stream is a terminal, and draws there what
// only a person wants to see: colours and progress.
package terminal

import (
	"fmt"
	"io"
	"os"
	"strings"
	"sync"

	"golang.org/x/term"
)

// Is tells whether w is a terminal.
func Is(w io.Writer) bool {
	file, ok := w.(*os.File)
	return ok && term.IsTerminal(int(file.Fd()))
}

// Colour tells whether to write colours to w: it is a terminal, NO_COLOR is
// unset or empty (https://no-color.org), and TERM is not dumb. getenv is os.Getenv.
func Colour(w io.Writer, getenv func(string) string) bool {
	return getenv("NO_COLOR") == "" && getenv("TERM") != "dumb" && Is(w)
}

const barWidth = 24

// Bar is a progress bar on one line of a terminal. It is safe for concurrent
// use. A nil *Bar draws nothing.
type Bar struct {
	mu    sync.Mutex
	w     io.Writer
	what  string
	total int
	done  int
}

// NewBar gives a bar of total steps on w; nil, which draws nothing, when w is no
// terminal or the work is short. what is what the steps are, such as "images".
func NewBar(w io.Writer, what string, total int) *Bar {
	const long = 5
	if total < long || !Is(w) {
		return nil
	}
	return newBar(w, what, total)
}

func newBar(w io.Writer, what string, total int) *Bar {
	bar := &Bar{w: w, what: what, total: total}
	bar.draw()
	return bar
}

// Step says that one more step is done.
func (b *Bar) Step() {
	if b == nil {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.done < b.total {
		b.done++
	}
	b.draw()
}

// Close wipes the bar off the terminal.
func (b *Bar) Close() {
	if b == nil {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	fmt.Fprint(b.w, "\r\x1b[K")
}

func (b *Bar) draw() {
	filled := barWidth * b.done / b.total
	fmt.Fprintf(b.w, "\r[%s%s] %d/%d %s", strings.Repeat("#", filled), strings.Repeat(".", barWidth-filled), b.done, b.total, b.what)
}
