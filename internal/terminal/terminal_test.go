package terminal

import (
	"bytes"
	"strings"
	"sync"
	"testing"
)

func TestBarCountsEveryStep(t *testing.T) {
	var out bytes.Buffer
	bar := newBar(&out, "images", 40)
	var all sync.WaitGroup
	for range 41 { // one more than there are: the bar does not overflow
		all.Go(bar.Step)
	}
	all.Wait()
	bar.Close()
	text := out.String()
	for _, want := range []string{"[........................] 0/40 images", "[############............] 20/40 images", "[########################] 40/40 images"} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in %q", want, text)
		}
	}
	if strings.Contains(text, "41/40") || !strings.HasSuffix(text, "\r\x1b[K") {
		t.Errorf("it ends with %q", text[len(text)-20:])
	}
}

func TestNothingIsDrawnOffATerminal(t *testing.T) {
	var out bytes.Buffer
	bar := NewBar(&out, "images", 100)
	bar.Step()
	bar.Close()
	if out.Len() > 0 || Colour(&out, func(string) string { return "" }) {
		t.Errorf("drawn: %q", out.String())
	}
}
