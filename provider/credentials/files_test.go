package credentials

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/archkeeper/archkeeper/provider"
)

func write(t *testing.T, path, text string) string {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func config(user string) string { return `{"auths":{"quay.io":{"username":"` + user + `"}}}` }

func TestFiles(t *testing.T) {
	dir := t.TempDir()
	first, second := write(t, dir+"/first/config.json", config("one")), write(t, dir+"/.dockercfg", `{"quay.io":{"username":"two"}}`)
	files := NewFiles(first, second)
	look := func() (string, error) {
		found, err := files.Lookup(t.Context(), provider.Scope{}, "quay.io/team/app")
		return names(found), err
	}
	want := func(when, users, fault string) {
		t.Helper()
		got, err := look()
		if got != users {
			t.Errorf("%s: found %q, want %q", when, got, users)
		}
		if (err == nil) != (fault == "") || err != nil && !strings.Contains(err.Error(), fault) {
			t.Errorf("%s: error is %v, want %q", when, err, fault)
		}
	}
	want("two files, in order", "one two", "")
	found, _ := files.Lookup(t.Context(), provider.Scope{}, "quay.io/x")
	if got := found[0].Source(); got != "authfile "+first {
		t.Errorf("source is %q", got)
	}

	write(t, first, config("six"))
	want("a change of the same length at once", "six two", "")
	write(t, first, `{"auths":{"quay.io":`)
	want("broken: the last good content, and an error", "six two", "first/config.json is not the JSON")
	want("and again", "six two", "first/config.json is not the JSON")
	write(t, first, `{"auths":{"bad":{"auth":"!"},"quay.io":{"username":"seven"}}}`)
	want("one broken entry", "seven two", `entry "bad"`)
	write(t, first, `{"auths":{}}`)
	want("emptied", "two", "")

	swapped := dir + "/link"
	write(t, dir+"/a", config("a"))
	write(t, dir+"/b", config("b"))
	if err := os.Symlink(dir+"/a", swapped); err != nil {
		t.Fatal(err)
	}
	files = NewFiles(swapped)
	want("a link, as of a mounted volume", "a", "")
	if err := os.Symlink(dir+"/b", swapped+".new"); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(swapped+".new", swapped); err != nil {
		t.Fatal(err)
	}
	want("the link swapped", "b", "")
	if err := os.Remove(swapped); err != nil {
		t.Fatal(err)
	}
	want("removed: no access", "", "link is not there")
	if _, err := look(); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("error is %v", err)
	}
	if err := os.Mkdir(swapped, 0o700); err != nil {
		t.Fatal(err)
	}
	want("a directory", "", "link is not a regular file")
}

func TestChain(t *testing.T) {
	dir := t.TempDir()
	chain := Chain{
		NewFiles(write(t, dir+"/a", config("a"))), NewFiles(dir + "/missing"),
		NewFiles(write(t, dir+"/b", config("b")), write(t, dir+"/c", config("a"))), Chain(nil),
	}
	found, err := chain.Lookup(t.Context(), provider.Scope{}, "quay.io/app")
	if got := names(found); got != "a b" {
		t.Errorf("found %q, want %q: in order, each secret once", got, "a b")
	}
	if err == nil || !strings.Contains(err.Error(), "missing is not there") {
		t.Errorf("error is %v", err)
	}
	if found, err := (Chain{}).Lookup(t.Context(), provider.Scope{}, "quay.io/app"); found != nil || err != nil {
		t.Errorf("an empty chain gives %v, %v", found, err)
	}
}
