package reload_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	clocktesting "k8s.io/utils/clock/testing"

	"github.com/archkeeper/archkeeper/provider/reload"
)

func parse(contents [][]byte) (string, error) {
	joined := string(bytes.Join(contents, []byte("+")))
	if strings.Contains(joined, "bad") {
		return "", errors.New("no good content")
	}
	return joined, nil
}

func write(t *testing.T, name, content string) {
	t.Helper()
	if err := os.WriteFile(name, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestFirstLook(t *testing.T) {
	for name, tc := range map[string]struct {
		content string
		missing bool
		want    string
	}{
		"a missing file is named":              {missing: true, want: "value.txt"},
		"a broken file is named":               {content: "bad", want: "value.txt"},
		"a file beyond the limit is refused":   {content: strings.Repeat("x", reload.MaxFileSize+1), want: "larger than"},
		"a file at the limit is taken in full": {content: strings.Repeat("x", reload.MaxFileSize)},
	} {
		t.Run(name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "value.txt")
			if !tc.missing {
				write(t, file, tc.content)
			}
			v, err := reload.New([]string{file}, parse, reload.Options{})
			if tc.want == "" {
				if err != nil || v.Get() != tc.content {
					t.Fatalf("error %v", err)
				}
				return
			}
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Fatalf("error %v, want one with %q", err, tc.want)
			}
		})
	}
}

func TestABadFileKeepsTheLastGoodValueAndIsSaidOnce(t *testing.T) {
	dir := t.TempDir()
	one, two := filepath.Join(dir, "one"), filepath.Join(dir, "two")
	write(t, one, "a")
	write(t, two, "b")
	var log bytes.Buffer
	failures, changes := 0, 0
	v, err := reload.New([]string{one, two}, parse, reload.Options{
		Log:       slog.New(slog.NewTextHandler(&log, nil)),
		OnFailure: func(error) { failures++ },
		OnChange:  func() { changes++ },
	})
	if err != nil {
		t.Fatal(err)
	}
	steps := []struct {
		does              string
		do                func()
		want              string
		failures, changes int
	}{
		{"nothing changes", func() {}, "a+b", 0, 0},
		{"one file breaks", func() { write(t, two, "bad") }, "a+b", 1, 0},
		{"the same fault again", func() {}, "a+b", 1, 0},
		{"a file vanishes", func() { _ = os.Remove(two) }, "a+b", 2, 0},
		{"it comes back as it was", func() { write(t, two, "b") }, "a+b", 2, 0},
		{"the first fault returns", func() { write(t, two, "bad") }, "a+b", 3, 0},
		{"it is repaired with new content", func() { write(t, two, "c") }, "a+c", 3, 1},
		{"content moves from one file to the other", func() { write(t, one, "a+"); write(t, two, "") }, "a++", 3, 2},
	}
	for _, s := range steps {
		s.do()
		v.Look()
		if v.Get() != s.want || failures != s.failures || changes != s.changes {
			t.Fatalf("after %q: value %q, failures %d, changes %d; want %q, %d, %d", s.does, v.Get(), failures, changes, s.want, s.failures, s.changes)
		}
	}
	if got := strings.Count(log.String(), "level=ERROR"); got != 3 {
		t.Errorf("%d error lines, want 3:\n%s", got, log.String())
	}
}

// The kubelet writes a Secret volume into a new directory and swaps the link
// ..data onto it.
func TestASwappedSymbolicLinkIsSeen(t *testing.T) {
	dir := t.TempDir()
	for _, v := range []string{"1", "2"} {
		if err := os.Mkdir(filepath.Join(dir, "..v"+v), 0o700); err != nil {
			t.Fatal(err)
		}
		write(t, filepath.Join(dir, "..v"+v, "tls.crt"), v)
	}
	link := func(target string) {
		t.Helper()
		tmp := filepath.Join(dir, "..data_tmp")
		if err := os.Symlink(target, tmp); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(tmp, filepath.Join(dir, "..data")); err != nil {
			t.Fatal(err)
		}
	}
	link("..v1")
	file := filepath.Join(dir, "tls.crt")
	if err := os.Symlink(filepath.Join("..data", "tls.crt"), file); err != nil {
		t.Fatal(err)
	}
	clock := clocktesting.NewFakeClock(time.Unix(0, 0))
	changed := make(chan struct{})
	v, err := reload.New([]string{file}, parse, reload.Options{Clock: clock, OnChange: func() { close(changed) }})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); v.Run(ctx) }()
	for !clock.HasWaiters() {
		time.Sleep(time.Millisecond)
	}
	link("..v2")
	clock.Step(reload.DefaultInterval)
	<-changed
	if got := v.Get(); got != "2" {
		t.Errorf("value %q, want 2", got)
	}
	cancel()
	<-done
}
