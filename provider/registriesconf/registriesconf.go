// Package registriesconf keeps the mirror configuration in step with the files
// that it is read from: registries.conf and its folder of drop-ins.
package registriesconf

import (
	"crypto/sha256"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/utils/clock"

	"github.com/archkeeper/archkeeper/provider/mirrors"
)

// Interval is how long the files are believed before they are looked at again.
const Interval = time.Second

// Options say what to read. The zero value reads nothing and gives no
// configuration.
type Options struct {
	// File is registries.conf; a named file must be there when Open is called.
	File string
	// Dir holds drop-ins, *.conf, which are read after File in the order of
	// their names. A folder that is not there has none.
	Dir string
	// Policy is a containers policy.json, by which references are refused before
	// anything is contacted; empty for none. It must be there when Open is called.
	Policy string
	// Clock; the real one when nil.
	Clock clock.PassiveClock
	// Log hears once of each distinct fault and of each change; nil for none.
	Log *slog.Logger
	// OnChange is called after another configuration has taken effect; nil for none.
	OnChange func()
}

// Source gives the configuration in force. It is safe for concurrent use.
type Source struct {
	options Options
	current atomic.Pointer[mirrors.Config]

	looking sync.Mutex // who holds it looks at the files; the others do not wait
	looked  time.Time
	content [sha256.Size]byte
	fault   string
}

// Open reads the files. Its error names the file that is missing or broken.
func Open(options Options) (*Source, error) {
	if options.Clock == nil {
		options.Clock = clock.RealClock{}
	}
	if options.Log == nil {
		options.Log = slog.New(slog.DiscardHandler)
	}
	s := &Source{options: options, looked: options.Clock.Now()}
	files, sum, err := s.read()
	if err != nil {
		return nil, err
	}
	config, err := s.parse(files)
	if err != nil {
		return nil, err
	}
	s.content = sum
	s.current.Store(config)
	return s, nil
}

// Current gives the configuration in force, nil for none. It looks at the files
// at most once in an Interval; while they are missing or broken, their last
// good content stays in force.
func (s *Source) Current() *mirrors.Config {
	s.Look()
	return s.current.Load()
}

// Look looks at the files, at most once in an Interval. Current does so too; Look is
// for who wants to be told of a change although nobody asks about images.
func (s *Source) Look() {
	if s.options.File == "" && s.options.Dir == "" && s.options.Policy == "" {
		return
	}
	if !s.looking.TryLock() {
		return
	}
	defer s.looking.Unlock()
	now := s.options.Clock.Now()
	if now.Sub(s.looked) < Interval {
		return
	}
	s.looked = now
	files, sum, err := s.read()
	if err == nil && sum == s.content {
		s.fault = ""
		return
	}
	var config *mirrors.Config
	if err == nil {
		config, err = s.parse(files)
	}
	if err != nil {
		if fault := err.Error(); fault != s.fault {
			s.fault = fault
			s.options.Log.Error("mirror configuration cannot be read; the last good one stays in force", "error", err)
		}
		return
	}
	s.fault, s.content = "", sum
	s.current.Store(config)
	s.options.Log.Info("mirror configuration changed", "files", len(files))
	if s.options.OnChange != nil {
		s.options.OnChange()
	}
}

func (s *Source) read() ([]mirrors.NamedFile, [sha256.Size]byte, error) {
	files, err := mirrors.ReadFiles(hostFiles{}, s.options.File, s.options.Dir)
	if err != nil {
		return nil, [sha256.Size]byte{}, err
	}
	if s.options.Policy != "" {
		// Last, so that parse knows it; read as the others are.
		policy, err := mirrors.ReadFiles(hostFiles{}, s.options.Policy, "")
		if err != nil {
			return nil, [sha256.Size]byte{}, err
		}
		files = append(files, policy...)
	}
	sum := sha256.New()
	for _, file := range files {
		// Hash lengths by hashing hashes: no two lists of files look alike.
		name, data := sha256.Sum256([]byte(file.Name)), sha256.Sum256(file.Data)
		sum.Write(name[:])
		sum.Write(data[:])
	}
	return files, [sha256.Size]byte(sum.Sum(nil)), nil
}

func (s *Source) parse(files []mirrors.NamedFile) (*mirrors.Config, error) {
	var policy *mirrors.Policy
	if s.options.Policy != "" {
		last := files[len(files)-1]
		files = files[:len(files)-1]
		var err error
		if policy, err = mirrors.ParsePolicy(last.Data); err != nil {
			return nil, fmt.Errorf("%s: %w", last.Name, err)
		}
	}
	var config *mirrors.Config
	if len(files) > 0 {
		var err error
		if config, err = mirrors.ParseRegistriesConf(files...); err != nil {
			return nil, err
		}
	}
	return config.Under(policy), nil
}

// hostFiles is the machine's file system under its own names, which may begin
// with a slash.
type hostFiles struct{}

// Open is that of fs.FS.
func (hostFiles) Open(name string) (fs.File, error) { return os.Open(name) }

// ReadDir is that of fs.ReadDirFS.
func (hostFiles) ReadDir(name string) ([]fs.DirEntry, error) { return os.ReadDir(name) }
