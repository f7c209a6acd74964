package mirrors

import (
	"strings"
	"testing"

	"github.com/BurntSushi/toml"
	"github.com/google/go-cmp/cmp"
)

func TestContainerdHosts(t *testing.T) {
	for name, tc := range map[string]struct {
		in   world
		want string // each file under "# host"
		lost []string
	}{
		"a mirror by digest has the capability pull": {
			in:   world{D("quay.io -> m.io")},
			want: "# quay.io\nserver = \"https://quay.io\"\n\n[host.\"https://m.io\"]\ncapabilities = [\"pull\"]\n",
		},
		"a mirror with a path overrides the path of the API": {
			in:   world{D("docker.io -> m.io:5000/hub")},
			want: "# docker.io\nserver = \"https://registry-1.docker.io\"\n\n[host.\"https://m.io:5000/v2/hub\"]\ncapabilities = [\"pull\"]\noverride_path = true\n",
		},
		"a mirror by digest and by tag resolves too": {
			in:   world{D("s.io -> m.io,n.io"), T("s.io -> n.io")},
			want: "# s.io\nserver = \"https://s.io\"\n\n[host.\"https://m.io\"]\ncapabilities = [\"pull\"]\n\n[host.\"https://n.io\"]\ncapabilities = [\"pull\", \"resolve\"]\n",
		},
		"insecure places try HTTPS unverified and then HTTP": {
			in:   world{D("s.io -> m.io/x"), R("I m.io,s.io")},
			want: "# m.io\nserver = \"http://m.io\"\nskip_verify = true\n# s.io\nserver = \"http://s.io\"\nskip_verify = true\n\n[host.\"http://m.io/v2/x\"]\ncapabilities = [\"pull\"]\noverride_path = true\nskip_verify = true\n",
		},
		"a source path that the mirror's path ends with": {
			in:   world{D("s.io/a -> m.io/p/a", "s.io/b -> n.io/b")},
			want: "# s.io\nserver = \"https://s.io\"\n\n[host.\"https://m.io/v2/p\"]\ncapabilities = [\"pull\"]\noverride_path = true\n\n[host.\"https://n.io\"]\ncapabilities = [\"pull\"]\n",
			lost: []string{"s.io/a: containerd tries the mirrors for all of s.io", "s.io/b: containerd tries the mirrors for all of s.io"},
		},
		"a source path that the mirror does not share": {
			in:   world{D("s.io/a -> m.io/b", "s.io/x -> n.io/yx")},
			lost: []string{"s.io/a: containerd mirrors whole registries: the path of mirror m.io/b does not end with /a", "s.io/x: containerd mirrors whole registries: the path of mirror n.io/yx does not end with /x"},
		},
		"tag-only, blocked and wildcards are unsupported": {
			in: world{T("s.io -> m.io"), R("B b.io"), D("*.w.io -> m.io")},
			lost: []string{
				"*.w.io: containerd has no wildcards", "b.io: containerd cannot block a registry; it is contacted after its mirrors",
				"s.io: containerd has no mirrors by tag alone: m.io is left out",
			},
		},
		"the source before other mirrors": {
			in:   world{D("s.io -> s.io,m.io")},
			want: "# s.io\nserver = \"https://s.io\"\n\n[host.\"https://m.io\"]\ncapabilities = [\"pull\"]\n",
			lost: []string{"s.io: containerd tries the source last, not before other mirrors"},
		},
		"an insecure repository": {
			in:   world{R("I s.io/a")},
			lost: []string{"s.io/a: containerd knows insecure registries, not insecure repositories"},
		},
		"search registries": {
			in:   world{R("S q.io")},
			lost: []string{": containerd has no search registries"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			res := build(t, tc.in...)
			files, lost := res.Config.ContainerdHosts()
			var got strings.Builder
			for _, f := range files {
				var file map[string]any
				if err := toml.Unmarshal(f.Data, &file); err != nil {
					t.Errorf("%v\n%s", err, f.Data)
				}
				got.WriteString("# " + f.Host + "\n" + string(f.Data))
			}
			if diff := cmp.Diff(tc.want, got.String()); diff != "" {
				t.Error(diff)
			}
			var said []string
			for _, l := range lost {
				said = append(said, l.Scope+": "+l.Reason)
			}
			if diff := cmp.Diff(tc.lost, said); diff != "" {
				t.Error(diff)
			}
			for _, p := range res.Unsupported() {
				if p.Kind == "" || p.Field == "" {
					t.Errorf("no origin: %v", p)
				}
			}
		})
	}
}
