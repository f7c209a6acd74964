package credentials

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/archkeeper/archkeeper/provider"
)

// settled is the age from which a file's modification time tells versions
// apart: file systems stamp by ticks of up to 2 s, so that a file written again
// within its tick looks unchanged.
const settled = 2 * time.Second

// Files is the Keychain of files in the format of Docker's config.json, or of
// the older .dockercfg when they are named so. All scopes may use them.
//
// A file that is changed or removed is seen by the next Lookup. While a file is
// broken, its last good content stays in use and Lookup gives an error too; a
// file that is not there gives nothing, and an error.
type Files struct {
	files []*authFile
}

// NewFiles reads nothing yet: the files may come and go.
func NewFiles(paths ...string) *Files {
	f := &Files{}
	for _, path := range paths {
		f.files = append(f.files, &authFile{path: path})
	}
	return f
}

// Lookup implements Keychain.
func (f *Files) Lookup(_ context.Context, _ provider.Scope, name string) ([]Credential, error) {
	var entries []entry
	var failed []error
	for _, file := range f.files {
		read, err := file.entries()
		entries = append(entries, read...)
		if err != nil {
			failed = append(failed, fmt.Errorf("authfile %s %w", file.path, err))
		}
	}
	return selectFor(name, entries), errors.Join(failed...)
}

// authFile remembers what a file held when it was last read.
type authFile struct {
	path string

	mu     sync.Mutex
	seen   fs.FileInfo
	readAt time.Time
	good   []entry
	err    error
}

func (f *authFile) entries() ([]entry, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	info, err := os.Stat(f.path)
	if err != nil {
		f.seen, f.good = nil, nil
		return nil, reason(err)
	}
	if f.seen != nil && os.SameFile(f.seen, info) && f.seen.Size() == info.Size() &&
		f.seen.ModTime().Equal(info.ModTime()) && f.readAt.Sub(info.ModTime()) > settled {
		return f.good, f.err
	}
	readAt := time.Now()
	data, err := readBounded(f.path)
	if errors.Is(err, fs.ErrNotExist) {
		f.seen, f.good = nil, nil
		return nil, reason(err)
	}
	f.seen, f.readAt, f.err = info, readAt, err
	if err != nil {
		return f.good, err
	}
	format := DockerConfigJSON
	if filepath.Base(f.path) == ".dockercfg" {
		format = Dockercfg
	}
	read, err := parseConfig("authfile "+f.path, data, format)
	if read != nil || err == nil {
		f.good = read
	}
	f.err = err
	return f.good, f.err
}

func readBounded(path string) ([]byte, error) {
	info, err := os.Stat(path) // first, because to open a pipe may block
	if err != nil {
		return nil, reason(err)
	}
	if !info.Mode().IsRegular() {
		return nil, errors.New("is not a regular file")
	}
	file, err := os.Open(path)
	if err != nil {
		return nil, reason(err)
	}
	defer file.Close()
	data, err := io.ReadAll(io.LimitReader(file, maxConfigBytes+1))
	if err != nil {
		return nil, reason(err)
	}
	return data, nil
}

// reason words an error so that it follows the file's name.
func reason(err error) error {
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("is not there: %w", fs.ErrNotExist)
	case errors.Is(err, fs.ErrPermission):
		return fmt.Errorf("may not be read: %w", fs.ErrPermission)
	}
	return errors.New("cannot be read")
}
