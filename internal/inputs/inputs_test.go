package inputs

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestRead(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{
		"b.yaml": "b", "a.YML": "a", "sub/deeper/c.json": "c", "notes.txt": "no", ".hidden.yaml": "no", ".git/d.yaml": "no",
	} {
		write(t, filepath.Join(dir, name), text)
	}
	outside := filepath.Join(t.TempDir(), "mirrors")
	write(t, outside, "plain")
	if err := os.Symlink(outside, filepath.Join(dir, "link.yaml")); err != nil {
		t.Fatal(err)
	}
	files, err := Read(strings.NewReader("from stdin"), outside, dir, "-")
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, f := range files {
		name := strings.TrimPrefix(strings.TrimPrefix(f.Name, dir+"/"), filepath.Dir(outside)+"/")
		got = append(got, name+"="+string(f.Data))
	}
	want := []string{"mirrors=plain", "a.YML=a", "b.yaml=b", "link.yaml=plain", "sub/deeper/c.json=c", "standard input=from stdin"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestReadNamesWhatFails(t *testing.T) {
	dir := t.TempDir()
	if err := os.Symlink(dir, filepath.Join(dir, "loop")); err != nil {
		t.Fatal(err)
	}
	for name, path := range map[string]string{
		"a file that is not there": filepath.Join(dir, "missing.yaml"),
		"a folder in itself":       dir,
	} {
		t.Run(name, func(t *testing.T) {
			files, err := Read(nil, path)
			if err == nil || !strings.Contains(err.Error(), path) || files != nil {
				t.Errorf("files %v, error %v", files, err)
			}
		})
	}
}
