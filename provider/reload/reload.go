// Package reload keeps a value in step with the files that it is made from:
// certificates, CA bundles, tokens.
//
// Files are read again at an interval and compared by content. Unlike a watch
// on an inode this sees every way in which a mounted Secret or ConfigMap
// changes (the kubelet swaps a symbolic link of the directory), works on every
// file system, and uses no kernel resource that can run out. A file that is
// missing or broken keeps the last good value, with one log line and one call
// of OnFailure for each distinct fault.
package reload

import (
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/utils/clock"
)

// MaxFileSize is the most that is read of one file, in bytes. A larger file is
// refused.
const MaxFileSize = 4 << 20

// DefaultInterval is the time between two looks at the files.
const DefaultInterval = time.Second

// Options say how files are watched. The zero value works.
type Options struct {
	// Interval between two looks at the files; DefaultInterval when 0.
	Interval time.Duration
	// Clock that gives the interval; the real one when nil.
	Clock clock.WithTicker
	// Log takes one line for each change and each distinct fault; nothing is
	// logged when nil.
	Log *slog.Logger
	// OnFailure is called once for each distinct fault, for a metric.
	OnFailure func(err error)
	// OnChange is called after a new value has taken effect. It is not called
	// for the first value.
	OnChange func()
}

// Value is a T made from files. Its methods are safe for concurrent use.
type Value[T any] struct {
	files   []string
	parse   func(contents [][]byte) (T, error)
	options Options

	current atomic.Pointer[T]

	mu      sync.Mutex // guards what follows: one look at the files at a time
	content [sha256.Size]byte
	fault   string
}

// New reads the files and makes the first value. The error names the file that
// is missing or broken. parse is given the content of each file, in the order
// of files, and must not keep it.
func New[T any](files []string, parse func(contents [][]byte) (T, error), options Options) (*Value[T], error) {
	if options.Interval <= 0 {
		options.Interval = DefaultInterval
	}
	if options.Clock == nil {
		options.Clock = clock.RealClock{}
	}
	if options.Log == nil {
		options.Log = slog.New(slog.DiscardHandler)
	}
	v := &Value[T]{files: files, parse: parse, options: options}
	contents, sum, err := v.read()
	if err != nil {
		return nil, err
	}
	first, err := parse(contents)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", strings.Join(files, ", "), err)
	}
	v.content = sum
	v.current.Store(&first)
	return v, nil
}

// Get gives the last good value.
func (v *Value[T]) Get() T { return *v.current.Load() }

// Run looks at the files at each interval until ctx ends.
func (v *Value[T]) Run(ctx context.Context) {
	ticker := v.options.Clock.NewTicker(v.options.Interval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C():
			v.Look()
		}
	}
}

// Look reads the files now and takes a new value when their content changed.
func (v *Value[T]) Look() {
	v.mu.Lock()
	changed, err := v.look()
	fresh := err != nil && err.Error() != v.fault
	switch {
	case err == nil:
		v.fault = ""
	case fresh:
		v.fault = err.Error()
	}
	v.mu.Unlock()

	if fresh {
		v.options.Log.Error("could not reload; the last good one stays in use", "error", err)
		if v.options.OnFailure != nil {
			v.options.OnFailure(err)
		}
	}
	if changed {
		v.options.Log.Info("reloaded", "files", v.files)
		if v.options.OnChange != nil {
			v.options.OnChange()
		}
	}
}

func (v *Value[T]) look() (changed bool, err error) {
	contents, sum, err := v.read()
	if err != nil {
		return false, err
	}
	if sum == v.content {
		return false, nil
	}
	next, err := v.parse(contents)
	if err != nil {
		return false, fmt.Errorf("%s: %w", strings.Join(v.files, ", "), err)
	}
	v.content = sum
	v.current.Store(&next)
	return true, nil
}

// read gives the files' contents and one hash over all of them.
func (v *Value[T]) read() ([][]byte, [sha256.Size]byte, error) {
	contents := make([][]byte, len(v.files))
	all := sha256.New()
	for i, file := range v.files {
		content, err := readFile(file)
		if err != nil {
			return nil, [sha256.Size]byte{}, err
		}
		contents[i] = content
		one := sha256.Sum256(content)
		all.Write(one[:])
	}
	return contents, [sha256.Size]byte(all.Sum(nil)), nil
}

func readFile(name string) ([]byte, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	content, err := io.ReadAll(io.LimitReader(f, MaxFileSize+1))
	if err != nil {
		return nil, fmt.Errorf("reading %s: %w", name, err)
	}
	if len(content) > MaxFileSize {
		return nil, fmt.Errorf("%s is larger than %d bytes", name, MaxFileSize)
	}
	return content, nil
}
