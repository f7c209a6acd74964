package nodeagent

import (
	"bytes"
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/archkeeper/archkeeper/provider/mirrors"
)

// Runtime is the kind of container runtime of a node.
type Runtime string

// The runtimes. Podman reads the files of CRIO.
const (
	CRIO       Runtime = "crio"
	Containerd Runtime = "containerd"
)

// ParseRuntime reads crio or containerd.
func ParseRuntime(text string) (Runtime, error) {
	switch r := Runtime(text); r {
	case CRIO, Containerd:
		return r, nil
	}
	return "", fmt.Errorf("runtime %q is neither crio nor containerd", text)
}

// Desired is what the mirror controller has handed over.
type Desired struct {
	Conf     []byte
	Delivery mirrors.Delivery
}

// The first line of every file that is ours.
const header = "# Written by Archkeeper's node agent. Do not edit: it is replaced.\n"

func ours(data []byte) bool { return bytes.HasPrefix(data, []byte(header)) }

// Action says what to do with one file.
type Action string

// The actions.
const (
	Keep   Action = "keep"   // what is there stays
	Write  Action = "write"  // Data replaces what is there
	Remove Action = "remove" // the file goes
)

// Decision is what to do with one file, and what a person should know.
type Decision struct {
	Action Action
	Data   []byte
	// Refused says why nothing is written although there is something to write.
	Refused string
	// Reports tell what the runtime cannot follow.
	Reports []string
}

// NodeFiles are the files that CRI-O and Podman read on a node.
type NodeFiles struct {
	// Main is registries.conf; nil when there is none.
	Main *mirrors.NamedFile
	// DropIns are those of others, and DropIn is ours, nil when there is none.
	DropIns []mirrors.NamedFile
	DropIn  []byte
}

// DecideDropIn decides about our drop-in. RuntimeVersion is nodeInfo's
// containerRuntimeVersion, such as cri-o://1.29.4; empty when not known.
func DecideDropIn(want Desired, node NodeFiles, runtimeVersion string) Decision {
	if node.DropIn != nil && !ours(node.DropIn) {
		return Decision{Action: Keep, Refused: fmt.Sprintf("%s is there and was not written by us", mirrors.DropInName)}
	}
	absent := Decision{Action: Keep}
	if node.DropIn != nil {
		absent.Action = Remove
	}
	if want.Delivery != mirrors.DeliveryNodes {
		absent.Reports = []string{fmt.Sprintf("delivery is %s: nothing is written to the node", want.Delivery)}
		return absent
	}
	config, err := mirrors.ParseRegistriesConf(mirrors.NamedFile{Name: "the ConfigMap", Data: want.Conf})
	if err != nil {
		return Decision{Action: Keep, Refused: err.Error()}
	}
	conf := want.Conf
	var reports []string
	if tooOld(runtimeVersion) && hasMirrors(config) {
		conf = config.WithoutMirrors()
		reports = append(reports, fmt.Sprintf("%s does not know pull-from-mirror (CRI-O 1.24 does): no mirrors are written", runtimeVersion))
		if config, err = mirrors.ParseRegistriesConf(mirrors.NamedFile{Name: "the ConfigMap", Data: conf}); err != nil {
			return Decision{Action: Keep, Refused: err.Error()}
		}
	}
	if len(config.Entries()) == 0 && len(config.SearchRegistries()) == 0 {
		absent.Reports = reports
		return absent
	}
	data := append([]byte(header), conf...)
	refused := foreignOwner(config, node)
	if refused == "" {
		refused = loads(data, node)
	}
	switch {
	case refused != "":
		return Decision{Action: Keep, Refused: refused, Reports: reports}
	case bytes.Equal(data, node.DropIn):
		return Decision{Action: Keep, Reports: reports}
	}
	return Decision{Action: Write, Data: data, Reports: reports}
}

func hasMirrors(c *mirrors.Config) bool {
	return slices.ContainsFunc(c.Entries(), func(e mirrors.Entry) bool { return len(e.Mirrors) > 0 })
}

// foreignOwner names a prefix of ours that a file of others has too.
func foreignOwner(config *mirrors.Config, node NodeFiles) string {
	var others []mirrors.NamedFile
	if node.Main != nil {
		others = append(others, *node.Main)
	}
	for _, f := range append(others, node.DropIns...) {
		theirs, err := mirrors.ParseRegistriesConf(f)
		if err != nil {
			return "a file of the node does not load: " + err.Error()
		}
		for _, e := range theirs.Entries() {
			if slices.ContainsFunc(config.Entries(), func(o mirrors.Entry) bool { return o.Prefix == e.Prefix }) {
				return fmt.Sprintf("%s has an entry for %s already", f.Name, e.Prefix)
			}
		}
	}
	return ""
}

// loads reads everything in the order in which a runtime would.
func loads(data []byte, node NodeFiles) string {
	files := append(slices.Clone(node.DropIns), mirrors.NamedFile{Name: mirrors.DropInName, Data: data})
	slices.SortFunc(files, func(a, b mirrors.NamedFile) int { return cmp.Compare(a.Name, b.Name) })
	if node.Main != nil {
		files = append([]mirrors.NamedFile{*node.Main}, files...)
	}
	if _, err := mirrors.ParseRegistriesConf(files...); err != nil {
		return "it would not load: " + err.Error()
	}
	return ""
}

var crioVersion = regexp.MustCompile(`^cri-o://v?(\d+)\.(\d+)\b`)

// tooOld tells whether a runtime is a CRI-O before 1.24.
func tooOld(version string) bool {
	found := crioVersion.FindStringSubmatch(version)
	if found == nil {
		return false
	}
	major, err := strconv.Atoi(found[1])
	minor, err2 := strconv.Atoi(found[2])
	return err == nil && err2 == nil && (major < 1 || major == 1 && minor < 24)
}

// HostFile is a hosts.toml as it is on a node, by the name of its folder.
type HostFile struct {
	Folder string
	Data   []byte
}

// HostDecision is a Decision about one registry's hosts.toml.
type HostDecision struct {
	Folder string
	Decision
}

// DecideHosts decides about containerd's files, sorted by folder: those of
// registries that we have something to say about, and those that are ours.
func DecideHosts(want Desired, node []HostFile) ([]HostDecision, []string) {
	var decisions []HostDecision
	var reports []string
	wanted := map[string][]byte{}
	switch config, err := mirrors.ParseRegistriesConf(mirrors.NamedFile{Name: "the ConfigMap", Data: want.Conf}); {
	case want.Delivery != mirrors.DeliveryNodes:
		reports = append(reports, fmt.Sprintf("delivery is %s: nothing is written to the node", want.Delivery))
	case err != nil:
		return nil, []string{err.Error()}
	default:
		files, lost := config.ContainerdHosts()
		for _, f := range files {
			wanted[f.Host] = append([]byte(header), f.Data...)
		}
		for _, l := range lost {
			reports = append(reports, strings.TrimPrefix(l.Scope+": ", ": ")+l.Reason)
		}
	}
	seen := map[string]bool{}
	for _, f := range node {
		host := registryOf(f.Folder)
		if host == f.Folder {
			seen[host] = true
		}
		data, ask := wanted[host]
		switch {
		case !ours(f.Data):
			if ask {
				decisions = append(decisions, HostDecision{f.Folder, Decision{Action: Keep, Refused: "hosts.toml is there and was not written by us"}})
				seen[host] = true
			}
		case !ask || host != f.Folder:
			decisions = append(decisions, HostDecision{f.Folder, Decision{Action: Remove}})
		case bytes.Equal(data, f.Data):
			decisions = append(decisions, HostDecision{f.Folder, Decision{Action: Keep}})
		default:
			decisions = append(decisions, HostDecision{f.Folder, Decision{Action: Write, Data: data}})
		}
	}
	for host, data := range wanted {
		if !seen[host] {
			decisions = append(decisions, HostDecision{host, Decision{Action: Write, Data: data}})
		}
	}
	slices.SortFunc(decisions, func(a, b HostDecision) int { return cmp.Compare(a.Folder, b.Folder) })
	return decisions, reports
}

var portFolder = regexp.MustCompile(`^(.+)_(\d+)_$`)

// registryOf gives the registry that a folder of config_path stands for:
// containerd reads host_5000_ before host:5000.
func registryOf(folder string) string {
	if found := portFolder.FindStringSubmatch(folder); found != nil {
		return found[1] + ":" + found[2]
	}
	return folder
}
