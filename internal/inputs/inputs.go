// Package inputs reads the files that a person names with -f: a file, a folder
// with everything below it, or - for standard input.
package inputs

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
)

// File is what was read, under the name that messages use.
type File struct {
	Name string
	Data []byte
}

const (
	// Limit is how many bytes of one file are read.
	Limit = 16 << 20
	// Stdin is the path that stands for standard input, which Read names
	// "standard input".
	Stdin     = "-"
	stdinName = "standard input"
	maxDepth  = 64
)

// Read reads paths in the order given. Of a folder it reads the files that end
// in .yaml, .yml or .json, in the order of their names, and of its sub-folders
// the same; names that begin with a dot are passed over. A file that is named
// itself is read whatever its name. Any failure names the file and leaves
// nothing read.
func Read(stdin io.Reader, paths ...string) ([]File, error) {
	var files []File
	for _, path := range paths {
		if path == Stdin {
			data, err := readAll(stdin)
			if err != nil {
				return nil, fmt.Errorf("read %s: %w", stdinName, err)
			}
			files = append(files, File{Name: stdinName, Data: data})
			continue
		}
		var err error
		if files, err = appendPath(files, path, 0); err != nil {
			return nil, err
		}
	}
	return files, nil
}

func appendPath(files []File, path string, depth int) ([]File, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if !info.IsDir() {
		data, err := readFile(path)
		if err != nil {
			return nil, err
		}
		return append(files, File{Name: path, Data: data}), nil
	}
	if depth > maxDepth {
		return nil, fmt.Errorf("%s: folders are nested deeper than %d", path, maxDepth)
	}
	entries, err := os.ReadDir(path)
	if err != nil {
		return nil, err
	}
	for _, entry := range entries {
		name := entry.Name()
		if strings.HasPrefix(name, ".") {
			continue
		}
		inside := filepath.Join(path, name)
		info, err := os.Stat(inside) // follows links, as mounted ConfigMaps have them
		if err != nil {
			return nil, err
		}
		if !info.IsDir() && !manifestName(name) {
			continue
		}
		if files, err = appendPath(files, inside, depth+1); err != nil {
			return nil, err
		}
	}
	return files, nil
}

func manifestName(name string) bool {
	switch strings.ToLower(filepath.Ext(name)) {
	case ".yaml", ".yml", ".json":
		return true
	}
	return false
}

func readFile(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := readAll(f)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", path, err)
	}
	return data, nil
}

func readAll(r io.Reader) ([]byte, error) {
	data, err := io.ReadAll(io.LimitReader(r, Limit+1))
	if err != nil {
		return nil, err
	}
	if len(data) > Limit {
		return nil, fmt.Errorf("it is larger than %d bytes", Limit)
	}
	return data, nil
}
