package mirrors

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"regexp"
	"slices"
	"strings"

	"github.com/BurntSushi/toml"

	"github.com/archkeeper/archkeeper/provider"
	"github.com/archkeeper/archkeeper/provider/imageref"
)

// Pull says for which pulls a mirror is used. The values are those of the key
// pull-from-mirror in containers-registries.conf(5).
type Pull string

// The values of Pull.
const (
	PullAll    Pull = "all"         // by tag and by digest; also what an absent key means
	PullDigest Pull = "digest-only" // ImageDigestMirrorSet, ImageContentSourcePolicy
	PullTag    Pull = "tag-only"    // ImageTagMirrorSet
)

// Mirror is one place to try before the source.
type Mirror struct {
	// Location replaces the part of a reference that its Entry's Prefix matched.
	Location string
	// Insecure allows plain HTTP and unverified certificates there.
	Insecure bool
	// Pull restricts the mirror to pulls by tag or by digest; empty is PullAll.
	Pull Pull
}

// Entry is one [[registry]] table.
type Entry struct {
	// Prefix is matched against references: host[:port][/path], or *.host.
	Prefix string
	// Location replaces Prefix when the source itself is tried. Empty only
	// for a wildcard, whose references are tried as they stand.
	Location string
	// Insecure allows plain HTTP and unverified certificates at the source.
	Insecure bool
	// Blocked forbids the source. Mirrors are judged on their own.
	Blocked bool
	// DigestOnly is mirror-by-digest-only: every mirror is PullDigest.
	DigestOnly bool
	// Mirrors in the order in which they are tried.
	Mirrors []Mirror
}

// Config is a registries.conf in force: the main file and its drop-ins, read
// as container runtimes read them. It is never changed once made, so any
// number of goroutines may use it. A nil Config configures nothing.
type Config struct {
	entries  []Entry // sorted by Prefix, which is unique
	byPrefix map[string]int
	search   []string
	policy   *Policy // nil permits everything
}

// Entries gives the entries, sorted by Prefix. Treat them as immutable.
func (c *Config) Entries() []Entry {
	if c == nil {
		return nil
	}
	return c.entries
}

// SearchRegistries gives the hosts that short names are tried at; nil when no
// file sets the key. Treat them as immutable.
func (c *Config) SearchRegistries() []string {
	if c == nil {
		return nil
	}
	return c.search
}

// newConfig takes ownership of entries, whose prefixes must be unique.
func newConfig(entries []Entry, search []string) *Config {
	slices.SortFunc(entries, func(a, b Entry) int { return strings.Compare(a.Prefix, b.Prefix) })
	c := &Config{entries: entries, byPrefix: make(map[string]int, len(entries)), search: search}
	for i, e := range entries {
		c.byPrefix[e.Prefix] = i
	}
	return c
}

// NamedFile is a file's name, for messages, and its bytes.
type NamedFile struct {
	Name string
	Data []byte
}

// FileLimit is how many bytes of one configuration file are read.
const FileLimit = 16 << 20

// ReadFiles reads main and then the drop-ins of folder in the order of their
// names: only names that end in .conf count, dot-files among them; sub-folders
// are not entered. An empty main or folder is left out. A folder that is not
// there has no files; a main file that is not there is an error.
func ReadFiles(fsys fs.FS, main, folder string) ([]NamedFile, error) {
	var files []NamedFile
	if main != "" {
		f, err := readFile(fsys, main)
		if err != nil {
			return nil, err
		}
		files = append(files, f)
	}
	if folder == "" {
		return files, nil
	}
	names, err := fs.ReadDir(fsys, folder)
	if errors.Is(err, fs.ErrNotExist) {
		return files, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list drop-ins: %w", err)
	}
	for _, entry := range names { // ReadDir sorts by name
		if entry.IsDir() || !strings.HasSuffix(entry.Name(), ".conf") {
			continue
		}
		f, err := readFile(fsys, path.Join(folder, entry.Name()))
		if err != nil {
			return nil, err
		}
		files = append(files, f)
	}
	return files, nil
}

func readFile(fsys fs.FS, name string) (NamedFile, error) {
	f, err := fsys.Open(name)
	if err != nil {
		return NamedFile{}, fmt.Errorf("read registries configuration: %w", err)
	}
	defer func() { _ = f.Close() }()
	data, err := io.ReadAll(io.LimitReader(f, FileLimit+1))
	if err != nil {
		return NamedFile{}, fmt.Errorf("read registries configuration %s: %w", name, err)
	}
	if len(data) > FileLimit {
		return NamedFile{}, fmt.Errorf("registries configuration %s is larger than %d bytes", name, FileLimit)
	}
	return NamedFile{Name: name, Data: data}, nil
}

// The TOML of registries.conf, version 2. Keys that are not listed are passed
// over, as runtimes pass them over.
type (
	tomlEndpoint struct {
		Location       string `toml:"location"`
		Insecure       bool   `toml:"insecure"`
		PullFromMirror string `toml:"pull-from-mirror"`
		NamespaceProxy string `toml:"namespace-proxy"`
	}
	tomlRegistry struct {
		Prefix string `toml:"prefix"`
		tomlEndpoint
		Mirrors            []tomlEndpoint `toml:"mirror"`
		Blocked            bool           `toml:"blocked"`
		MirrorByDigestOnly bool           `toml:"mirror-by-digest-only"`
	}
	tomlV1List struct {
		Registries []string `toml:"registries"`
	}
	tomlV1 struct {
		Search   tomlV1List `toml:"search"`
		Insecure tomlV1List `toml:"insecure"`
		Block    tomlV1List `toml:"block"`
	}
	tomlFile struct {
		Registries        []tomlRegistry    `toml:"registry"`
		Search            []string          `toml:"unqualified-search-registries"`
		CredentialHelpers []string          `toml:"credential-helpers"`
		ShortNameMode     string            `toml:"short-name-mode"`
		LayerStoreHelper  string            `toml:"additional-layer-store-auth-helper"`
		Aliases           map[string]string `toml:"aliases"`
		V1                tomlV1            `toml:"registries"`
	}
)

// ParseRegistriesConf reads the main file and then the drop-ins, in the order
// given: the caller sorts drop-ins by name. An equal prefix in a later file
// replaces the whole entry, and a later list of search registries the whole
// list. What would keep a runtime from starting is an error that names the
// file: broken TOML, version 1, an entry without prefix and location, a
// wildcard prefix with more than a host, a mirror without location, a misplaced
// pull-from-mirror, one location twice with different flags, a bad alias.
func ParseRegistriesConf(files ...NamedFile) (*Config, error) {
	merged := map[string]Entry{}
	var search []string
	for _, f := range files {
		entries, hosts, err := parseFile(f.Data)
		if err != nil {
			return nil, fmt.Errorf("registries configuration %s: %w", f.Name, err)
		}
		for _, e := range entries {
			merged[e.Prefix] = e
		}
		if hosts != nil {
			search = hosts
		}
	}
	entries := make([]Entry, 0, len(merged))
	for _, e := range merged {
		entries = append(entries, e)
	}
	return newConfig(entries, search), nil
}

func parseFile(data []byte) ([]Entry, []string, error) {
	var file tomlFile
	if _, err := toml.NewDecoder(bytes.NewReader(data)).Decode(&file); err != nil {
		var position toml.ParseError
		if errors.As(err, &position) {
			return nil, nil, fmt.Errorf("line %d: %s", position.Position.Line, position.Message)
		}
		return nil, nil, err
	}
	if file.V1.Search.Registries != nil || file.V1.Insecure.Registries != nil || file.V1.Block.Registries != nil {
		return nil, nil, errors.New("version 1 of the format ([registries.search] and the like) is not read by runtimes any more")
	}
	switch file.ShortNameMode {
	case "", "disabled", "enforcing", "permissive":
	default:
		return nil, nil, fmt.Errorf("short-name-mode %s is none of disabled, enforcing, permissive", provider.Quote(file.ShortNameMode))
	}
	if err := checkAliases(file.Aliases); err != nil {
		return nil, nil, err
	}
	entries, err := readEntries(file.Registries)
	if err != nil {
		return nil, nil, err
	}
	for i, host := range file.Search {
		host, err := readLocation(host)
		if err != nil {
			return nil, nil, err
		}
		if !searchGrammar.MatchString(host) {
			return nil, nil, fmt.Errorf("unqualified-search-registries: %s is no host[:port]", provider.Quote(host))
		}
		file.Search[i] = host
	}
	return entries, file.Search, nil
}

// readEntries applies the checks of one file. Of an equal prefix in one file
// the first entry counts.
func readEntries(tables []tomlRegistry) ([]Entry, error) {
	type flags struct{ insecure, blocked bool }
	seen := map[string]flags{} // by location, or prefix when there is none
	known := map[string]bool{}
	var entries []Entry
	for _, table := range tables {
		e, err := readEntry(table)
		if err != nil {
			return nil, err
		}
		place := e.Location
		if place == "" {
			place = e.Prefix
		}
		now := flags{e.Insecure, e.Blocked}
		if before, twice := seen[place]; twice && before != now {
			return nil, fmt.Errorf("location %s stands in two entries with different insecure or blocked flags", provider.Quote(place))
		}
		seen[place] = now
		if !known[e.Prefix] {
			known[e.Prefix] = true
			entries = append(entries, e)
		}
	}
	return entries, nil
}

func readEntry(table tomlRegistry) (Entry, error) {
	location, err := readLocation(table.Location)
	if err != nil {
		return Entry{}, err
	}
	prefix, err := readLocation(table.Prefix)
	if err != nil {
		return Entry{}, err
	}
	wildcard := strings.HasPrefix(prefix, "*.")
	switch {
	case table.Prefix == "" && location == "":
		return Entry{}, errors.New("an entry has neither prefix nor location")
	case table.Prefix == "":
		prefix = location
		wildcard = strings.HasPrefix(prefix, "*.")
	case location == "" && !wildcard:
		return Entry{}, fmt.Errorf("entry %s has no location and is not of the form *.host", provider.Quote(prefix))
	}
	if wildcard && strings.ContainsAny(prefix, "/@:") {
		return Entry{}, fmt.Errorf("prefix %s has more than a host behind its wildcard", provider.Quote(prefix))
	}
	if table.PullFromMirror != "" {
		return Entry{}, fmt.Errorf("entry %s: pull-from-mirror belongs to a mirror", provider.Quote(prefix))
	}
	e := Entry{
		Prefix: prefix, Location: location, Insecure: table.Insecure,
		Blocked: table.Blocked, DigestOnly: table.MirrorByDigestOnly,
	}
	for _, m := range table.Mirrors {
		where, err := readLocation(m.Location)
		if err != nil {
			return Entry{}, err
		}
		switch {
		case where == "":
			return Entry{}, fmt.Errorf("entry %s has a mirror without location", provider.Quote(prefix))
		case e.DigestOnly && m.PullFromMirror != "":
			return Entry{}, fmt.Errorf("entry %s: pull-from-mirror of mirror %s beside mirror-by-digest-only", provider.Quote(prefix), provider.Quote(where))
		}
		switch Pull(m.PullFromMirror) {
		case "", PullAll, PullDigest, PullTag:
		default:
			return Entry{}, fmt.Errorf("mirror %s: pull-from-mirror %s is none of all, digest-only, tag-only", provider.Quote(where), provider.Quote(m.PullFromMirror))
		}
		e.Mirrors = append(e.Mirrors, Mirror{Location: where, Insecure: m.Insecure, Pull: Pull(m.PullFromMirror)})
	}
	return e, nil
}

// readLocation takes trailing slashes off and refuses a scheme.
func readLocation(text string) (string, error) {
	trimmed := strings.TrimRight(text, "/")
	if strings.HasPrefix(trimmed, "http://") || strings.HasPrefix(trimmed, "https://") {
		return "", fmt.Errorf("location %s begins with a scheme", provider.Quote(text))
	}
	return trimmed, nil
}

const hostPattern = `(?:[a-zA-Z0-9]|[a-zA-Z0-9][a-zA-Z0-9-]*[a-zA-Z0-9])(?:\.(?:[a-zA-Z0-9]|[a-zA-Z0-9][a-zA-Z0-9-]*[a-zA-Z0-9]))*`

const pathPattern = `[a-z0-9]+(?:(?:[._]|__|-+)[a-z0-9]+)*(?:/[a-z0-9]+(?:(?:[._]|__|-+)[a-z0-9]+)*)*`

var (
	searchGrammar = regexp.MustCompile(`^` + hostPattern + `(?::[0-9]+)?$`)
	aliasGrammar  = regexp.MustCompile(`^(?:[a-zA-Z0-9](?:[a-zA-Z0-9-]*[a-zA-Z0-9])?/)?` + pathPattern + `$`)
)

// checkAliases refuses what keeps a runtime from loading the file: a short name
// that is none, or a value that is not registry/repository.
func checkAliases(aliases map[string]string) error {
	names := make([]string, 0, len(aliases))
	for name := range aliases {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		first, _, _ := strings.Cut(name, "/")
		if !aliasGrammar.MatchString(name) || first == "localhost" && first != name || strings.Contains(first, ".") && first != name {
			return fmt.Errorf("alias %s is no short name", provider.Quote(name))
		}
		value := aliases[name]
		if value == "" {
			continue // takes an alias of an earlier file back
		}
		host, _, found := strings.Cut(value, "/")
		if !found || !strings.ContainsAny(host, ".:") && host != "localhost" {
			return fmt.Errorf("alias %s: %s has no registry", provider.Quote(name), provider.Quote(value))
		}
		ref, err := imageref.Parse(value)
		if err != nil {
			return fmt.Errorf("alias %s: %w", provider.Quote(name), err)
		}
		if ref.Digest() != "" || strings.HasSuffix(value, ":"+ref.Tag()) {
			return fmt.Errorf("alias %s: %s has a tag or a digest", provider.Quote(name), provider.Quote(value))
		}
	}
	return nil
}

// WithoutMirrors writes the Config without any mirror, for runtimes that do not
// know pull-from-mirror and would pull tags from mirrors by digest: search
// registries and the insecure and blocked flags remain.
func (c *Config) WithoutMirrors() []byte {
	r := Result{Config: &Config{byPrefix: map[string]int{}, search: c.SearchRegistries()}}
	for _, e := range c.Entries() {
		e.Mirrors = nil
		if !e.Insecure && !e.Blocked {
			continue
		}
		r.Config.byPrefix[e.Prefix] = len(r.Config.entries)
		r.Config.entries = append(r.Config.entries, e)
		r.emission = append(r.emission, e.Prefix)
	}
	return r.RegistriesConf()
}

// InsecureOnly gives a Config that knows of each place of this one whether it is
// insecure, and has no mirrors and nothing blocked: for looking at sources and
// mirrors each at its own place.
func (c *Config) InsecureOnly() *Config {
	insecure := map[string]bool{}
	for _, e := range c.Entries() {
		if e.Insecure && e.Location == e.Prefix {
			insecure[e.Prefix] = true
		}
		for _, m := range e.Mirrors {
			if m.Insecure {
				insecure[m.Location] = true
			}
		}
	}
	var entries []Entry
	for place := range insecure {
		entries = append(entries, Entry{Prefix: place, Location: place, Insecure: true})
	}
	return newConfig(entries, nil)
}
