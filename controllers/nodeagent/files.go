package nodeagent

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/archkeeper/archkeeper/provider/mirrors"
)

const (
	// tempPrefix and tempSuffix mark files that a killed agent left behind.
	// Runtimes read what ends in .conf, dot-files too, and nothing else.
	tempPrefix = ".archkeeper-"
	tempSuffix = ".tmp"
	fileLimit  = 16 << 20
)

// files reads and writes the files of the node below root.
type files struct {
	root string
	// step is called before each step of a write, by its name; an error ends
	// the write there, as the end of the process would. Nil outside of tests.
	step func(name string) error
}

func (f files) path(parts ...string) string {
	return filepath.Join(append([]string{f.root}, parts...)...)
}

func (f files) at(name string) error {
	if f.step == nil {
		return nil
	}
	return f.step(name)
}

// write replaces the file name of folder, which is made when it is not there:
// a temporary file in the same folder, synced, renamed over it, and the folder
// synced. A crash at any point leaves the old file or the new one.
func (f files) write(folder, name string, data []byte) error {
	if err := f.at("make the folder"); err != nil {
		return err
	}
	if err := os.MkdirAll(folder, 0o755); err != nil { //nolint:gosec // runtimes of other users read it
		return err
	}
	f.sweep(folder)
	var random [8]byte
	if _, err := rand.Read(random[:]); err != nil {
		return err
	}
	temp := filepath.Join(folder, tempPrefix+hex.EncodeToString(random[:])+tempSuffix)
	if err := f.at("create"); err != nil {
		return err
	}
	out, err := os.OpenFile(temp, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644) //nolint:gosec // runtimes of other users read it
	if err != nil {
		return err
	}
	if err := errors.Join(f.fill(out, data), out.Close()); err != nil {
		return err // the next write sweeps the temporary file away
	}
	if err := f.at("rename"); err != nil {
		return err
	}
	if err := os.Rename(temp, filepath.Join(folder, name)); err != nil {
		return err
	}
	return f.sync(folder)
}

func (f files) fill(out *os.File, data []byte) error {
	if err := f.at("write the first half"); err != nil {
		return err
	}
	half := len(data) / 2
	if _, err := out.Write(data[:half]); err != nil {
		return err
	}
	if err := f.at("write the second half"); err != nil {
		return err
	}
	if _, err := out.Write(data[half:]); err != nil {
		return err
	}
	if err := f.at("sync the file"); err != nil {
		return err
	}
	return out.Sync()
}

func (f files) sync(folder string) error {
	if err := f.at("sync the folder"); err != nil {
		return err
	}
	dir, err := os.Open(folder)
	if err != nil {
		return err
	}
	defer dir.Close()
	return dir.Sync()
}

// remove takes a file away for good.
func (f files) remove(folder, name string) error {
	if err := f.at("remove"); err != nil {
		return err
	}
	if err := os.Remove(filepath.Join(folder, name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return f.sync(folder)
}

// sweep removes what a killed agent left behind; a failure waits for the next time.
func (f files) sweep(folder string) {
	entries, err := os.ReadDir(folder)
	if err != nil {
		return
	}
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), tempPrefix) && strings.HasSuffix(e.Name(), tempSuffix) {
			_ = os.Remove(filepath.Join(folder, e.Name()))
		}
	}
}

// read gives a file's bytes; nil and no error when it is not there.
func read(path string) ([]byte, error) {
	file, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer file.Close()
	data, err := io.ReadAll(io.LimitReader(file, fileLimit+1))
	if err != nil {
		return nil, err
	}
	if len(data) > fileLimit {
		return nil, fmt.Errorf("%s is larger than %d bytes", path, fileLimit)
	}
	if data == nil {
		data = []byte{}
	}
	return data, nil
}

// containers reads the files of CRI-O and Podman.
func (f files) containers() (NodeFiles, error) {
	var node NodeFiles
	data, err := read(f.path("etc/containers/registries.conf"))
	if err != nil {
		return node, err
	}
	if data != nil {
		node.Main = &mirrors.NamedFile{Name: "registries.conf", Data: data}
	}
	entries, err := os.ReadDir(f.path("etc/containers/registries.conf.d"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return node, err
	}
	for _, e := range entries {
		if e.IsDir() || !strings.HasSuffix(e.Name(), ".conf") {
			continue
		}
		data, err := read(f.path("etc/containers/registries.conf.d", e.Name()))
		switch {
		case err != nil:
			return node, err
		case data == nil: // gone in between
		case e.Name() == mirrors.DropInName:
			node.DropIn = data
		default:
			node.DropIns = append(node.DropIns, mirrors.NamedFile{Name: e.Name(), Data: data})
		}
	}
	return node, nil
}

// hosts reads containerd's files.
func (f files) hosts() ([]HostFile, error) {
	entries, err := os.ReadDir(f.path("etc/containerd/certs.d"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var out []HostFile
	for _, e := range entries {
		data, err := read(f.path("etc/containerd/certs.d", e.Name(), "hosts.toml"))
		if errors.Is(err, syscall.ENOTDIR) {
			continue // a file lies where folders are; links to folders count
		}
		if err != nil {
			return nil, err
		}
		if data != nil {
			out = append(out, HostFile{Folder: e.Name(), Data: data})
		}
	}
	return out, nil
}

// configPath tells whether containerd's own configuration names a config_path:
// without it, hosts.toml files are not read. Known is false when the
// configuration cannot be read.
func (f files) configPath() (set, known bool) {
	data, err := read(f.path("etc/containerd/config.toml"))
	if err != nil || data == nil {
		return false, false
	}
	for line := range strings.Lines(string(data)) {
		key, value, ok := strings.Cut(strings.TrimSpace(line), "=")
		if ok && strings.TrimSpace(key) == "config_path" && strings.Contains(value, "certs.d") {
			return true, true
		}
	}
	return false, true
}
