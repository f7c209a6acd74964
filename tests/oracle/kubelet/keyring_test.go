// Package kubelet compares how credentials are matched to images with the
// kubelet's own keyring.
package kubelet

import (
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/credentialprovider"

	"github.com/archkeeper/archkeeper/provider"
	"github.com/archkeeper/archkeeper/provider/credentials"
)

// theirs gives the users that the kubelet's keyring finds, in order.
func theirs(t *testing.T, config []byte, image string) []string {
	t.Helper()
	var parsed credentialprovider.DockerConfigJSON
	if err := json.Unmarshal(config, &parsed); err != nil {
		t.Fatal(err)
	}
	keyring := &credentialprovider.BasicDockerKeyring{}
	keyring.Add(nil, parsed.Auths)
	found, _ := keyring.Lookup(image)
	var users []string
	for _, credential := range found {
		users = append(users, credential.Username)
	}
	return users
}

// ours gives those that we find in a file with the same content. What cannot be
// read of it is left out on both sides.
func ours(t *testing.T, path string, config []byte, image string) []string {
	t.Helper()
	if err := os.WriteFile(path, config, 0o600); err != nil {
		t.Fatal(err)
	}
	found, _ := credentials.NewFiles(path).Lookup(t.Context(), provider.Scope{}, image)
	var users []string
	for _, credential := range found {
		users = append(users, credential.AuthConfig().Username)
	}
	return users
}

// compare looks an image up in a configuration whose users are the locations'
// numbers. Locations that the kubelet keeps under one key have no order there
// (it ranges over a map): plain says that there are none.
func compare(t *testing.T, path string, locations []string, image string, plain bool) {
	t.Helper()
	auths := map[string]map[string]string{}
	for n, location := range locations {
		if auths[location] == nil {
			auths[location] = map[string]string{"username": fmt.Sprintf("u%d", n), "password": "p"}
		}
	}
	config, err := json.Marshal(map[string]any{"auths": auths})
	if err != nil {
		t.Fatal(err)
	}
	want, got := theirs(t, config, image), ours(t, path, config, image)
	if !plain {
		slices.Sort(want)
		slices.Sort(got)
	}
	if !slices.Equal(want, got) {
		t.Errorf("image %q, locations %q: kubelet %v, ours %v", image, locations, want, got)
	}
}

// TestMain keeps the kubelet's complaints about odd locations out of the output.
func TestMain(m *testing.M) {
	klog.LogToStderr(false)
	klog.SetOutput(io.Discard)
	os.Exit(m.Run())
}

func TestKeyring(t *testing.T) {
	hosts := []string{
		"quay.io", "a.k.io", "b.k.io", "k.io", "a.b.k.io", "docker.io", "index.docker.io", "registry-1.docker.io", "localhost",
		"10.0.0.1", "[::1]", "*.k.io", "*.*.io", "k*.io", "a.*.io", "*", "[ab].k.io", "?.k.io", "Quay.io", "busybox",
	}
	ports := []string{"", "", "", ":5000", ":443"}
	paths := []string{"", "", "/", "/team", "/team/", "/team/app", "/teammate", "/team/app/deep", "/v1", "/v1/", "/v2/", "/v2/team", "/v1/team/app", "/library/busybox", "/t%65am"}
	schemes := []string{"", "", "https://", "http://", "https://me@", "ftp://"}
	random := rand.New(rand.NewPCG(3, 1)) // the same cases each time
	pick := func(list []string) string { return list[random.IntN(len(list))] }
	path := filepath.Join(t.TempDir(), "config.json")
	for range 5000 {
		plain := random.IntN(2) == 0
		var locations []string
		for range 1 + random.IntN(6) {
			location := pick(hosts) + pick(ports)
			if plain {
				location += pick([]string{"", "/team", "/team/app", "/teammate", "/library/busybox"})
			} else {
				location = pick(schemes) + location + pick(paths)
			}
			locations = append(locations, location)
		}
		image := pick(hosts[:11]) + pick(ports) + pick([]string{"/team/app", "/teammate/app", "/library/busybox", "/app", ""})
		if random.IntN(8) == 0 {
			image = pick([]string{"busybox", "library/busybox", "team/app", "", "/", "a b", "%zz/x", strings.Repeat("a/", 20)})
		}
		// "?" begins a query for the kubelet, so such locations share one key.
		ordered := plain && !slices.ContainsFunc(locations, func(l string) bool { return strings.Contains(l, "?") })
		compare(t, path, locations, image, ordered)
		if t.Failed() {
			return
		}
	}
}

func FuzzKeyring(f *testing.F) {
	f.Add("*.k.io https://index.docker.io/v1/ quay.io:5000/team", "a.k.io/app")
	f.Add("[::1]:5000 [ab].k.io", "[::1]:5000/app")
	f.Fuzz(func(t *testing.T, locations, image string) {
		if json.Valid([]byte(`"`+image+`"`)) && len(strings.Fields(locations)) < 8 {
			compare(t, filepath.Join(t.TempDir(), "config.json"), strings.Fields(locations), image, false)
		}
	})
}
