package registriesconf_test

import (
	"bytes"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	testingclock "k8s.io/utils/clock/testing"

	"github.com/archkeeper/archkeeper/provider/imageref"
	"github.com/archkeeper/archkeeper/provider/mirrors"
	"github.com/archkeeper/archkeeper/provider/registriesconf"
)

func conf(mirror string) string {
	return "[[registry]]\nlocation = \"quay.io\"\n[[registry.mirror]]\nlocation = \"" + mirror + "\"\n"
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// first gives where quay.io/a/b is looked for first.
func first(t *testing.T, config *mirrors.Config) string {
	t.Helper()
	ref, err := imageref.Parse("quay.io/a/b:1")
	if err != nil {
		t.Fatal(err)
	}
	return config.Resolve(ref).Candidates[0].Reference.Registry()
}

func TestFilesAreFollowed(t *testing.T) {
	dir := t.TempDir()
	file, dropins := filepath.Join(dir, "registries.conf"), filepath.Join(dir, "conf.d")
	write(t, file, conf("one.local"))
	clock := testingclock.NewFakePassiveClock(time.Unix(0, 0))
	var log bytes.Buffer
	source, err := registriesconf.Open(registriesconf.Options{File: file, Dir: dropins, Clock: clock, Log: slog.New(slog.NewTextHandler(&log, nil))})
	if err != nil {
		t.Fatal(err)
	}
	expect := func(step, want string) {
		t.Helper()
		if got := first(t, source.Current()); got != want {
			t.Errorf("%s: %s, want %s", step, got, want)
		}
	}
	pass := func() { clock.SetTime(clock.Now().Add(registriesconf.Interval)) }

	expect("at first", "one.local")
	write(t, file, conf("two.local"))
	expect("within the interval the files are believed", "one.local")
	pass()
	expect("after it they are read again", "two.local")
	write(t, filepath.Join(dropins, "10.conf"), conf("three.local"))
	pass()
	expect("a drop-in that appears", "three.local")
	write(t, file, "[[registry")
	for range 3 {
		pass()
		expect("a broken file keeps the last good content", "three.local")
	}
	if n := strings.Count(log.String(), "level=ERROR"); n != 1 {
		t.Errorf("%d log lines of one fault:\n%s", n, log.String())
	}
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	pass()
	expect("a file that is gone keeps it too", "three.local")
	write(t, file, conf("four.local"))
	if err := os.RemoveAll(dropins); err != nil {
		t.Fatal(err)
	}
	pass()
	expect("a file that is back, drop-ins that are gone", "four.local")
}

func TestOpen(t *testing.T) {
	dir := t.TempDir()
	broken := filepath.Join(dir, "broken.conf")
	write(t, broken, "x = [")
	for _, file := range []string{broken, filepath.Join(dir, "missing.conf")} {
		if _, err := registriesconf.Open(registriesconf.Options{File: file}); err == nil || !strings.Contains(err.Error(), file) {
			t.Errorf("%s: %v", file, err)
		}
	}
	source, err := registriesconf.Open(registriesconf.Options{Dir: filepath.Join(dir, "nowhere")})
	if err != nil || source.Current() != nil {
		t.Errorf("no files: %v, %v", source, err)
	}
	if source, err = registriesconf.Open(registriesconf.Options{}); err != nil || source.Current() != nil {
		t.Errorf("no options: %v, %v", source, err)
	}
}

func TestAChangeIsToldOnce(t *testing.T) {
	file := filepath.Join(t.TempDir(), "registries.conf")
	write(t, file, conf("one.local"))
	clock := testingclock.NewFakePassiveClock(time.Unix(0, 0))
	changes := 0
	source, err := registriesconf.Open(registriesconf.Options{File: file, Clock: clock, OnChange: func() { changes++ }})
	if err != nil {
		t.Fatal(err)
	}
	for _, step := range []struct {
		sentence, text string
		want           int
	}{
		{"the same content", conf("one.local"), 0},
		{"another mirror", conf("two.local"), 1},
		{"a broken file", "[[registry", 1},
		{"the last good content again", conf("two.local"), 1},
		{"a third mirror", conf("three.local"), 2},
	} {
		write(t, file, step.text)
		clock.SetTime(clock.Now().Add(registriesconf.Interval))
		source.Look()
		source.Look()
		if changes != step.want {
			t.Errorf("%s: %d changes, want %d", step.sentence, changes, step.want)
		}
	}
}
