package report_test

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/archkeeper/archkeeper/provider"
	"github.com/archkeeper/archkeeper/provider/report"
	"github.com/archkeeper/archkeeper/provider/wire"
	"github.com/archkeeper/archkeeper/provider/workloads"
)

var update = flag.Bool("update", false, "write the golden files")

const sum = "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"

func known(image string, platforms ...string) provider.Answer {
	return provider.Answer{
		Image: image, Reference: "docker.io/library/" + image + ":latest", Digest: sum, Kind: provider.KindIndex,
		Platforms: platforms, CredentialSource: "anonymous",
	}
}

func failed(image string, class provider.Class) provider.Answer {
	return provider.Answer{Image: image, Reference: "docker.io/library/" + image + ":latest", Err: provider.Errorf(class, "it is %s", class)}
}

func TestJudge(t *testing.T) {
	for sentence, row := range map[string]struct {
		row     report.Row
		require string
		want    report.Verdict
		missing string
	}{
		"all are there":                              {report.Row{Answer: known("x", "linux/amd64", "linux/arm64")}, "linux/amd64,linux/arm64", report.Met, ""},
		"one is missing":                             {report.Row{Answer: known("x", "linux/amd64")}, "linux/amd64,linux/arm64,linux/s390x", report.Unmet, "linux/arm64 linux/s390x"},
		"any version of windows does":                {report.Row{Answer: known("x", "windows(10.0.17763.1)/amd64")}, "windows/amd64", report.Met, ""},
		"an alias is required":                       {report.Row{Answer: known("x", "linux/arm64")}, "linux/aarch64", report.Met, ""},
		"arm is arm/v7":                              {report.Row{Answer: known("x", "linux/arm/v7")}, "linux/arm", report.Met, ""},
		"content only places no constraint":          {report.Row{Answer: provider.Answer{Image: "b", ContentOnly: true}}, "linux/amd64", report.Met, ""},
		"what cannot run is unmet":                   {report.Row{Answer: failed("x", provider.ClassNotRunnable)}, "linux/amd64", report.Unmet, "linux/amd64"},
		"what cannot run may be mounted":             {report.Row{Answer: failed("x", provider.ClassNotRunnable), VolumeOnly: true}, "linux/amd64", report.Met, ""},
		"a mounted image must have the platform too": {report.Row{Answer: known("x", "linux/amd64"), VolumeOnly: true}, "linux/arm64", report.Unmet, "linux/arm64"},
		"malformed is undetermined":                  {report.Row{Answer: failed("x", provider.ClassMalformed)}, "linux/amd64", report.Undetermined, ""},
		"blocked is undetermined":                    {report.Row{Answer: failed("x", provider.ClassBlocked)}, "linux/amd64", report.Undetermined, ""},
		"timeout is undetermined":                    {report.Row{Answer: failed("x", provider.ClassTimeout), VolumeOnly: true}, "linux/amd64", report.Undetermined, ""},
	} {
		t.Run(sentence, func(t *testing.T) {
			required, err := report.ParseRequirement([]string{row.require})
			if err != nil {
				t.Fatal(err)
			}
			row.row.Judge(required)
			var missing []string
			for _, p := range row.row.Missing {
				missing = append(missing, p.String())
			}
			if row.row.Verdict != row.want || strings.Join(missing, " ") != row.missing {
				t.Errorf("%s, missing %q", row.row.Verdict, missing)
			}
		})
	}
}

func TestParseRequirement(t *testing.T) {
	for _, text := range []string{"", "linux", "amd64", "linux/amd64,", "linux/amd64, linux/arm64", "linux/*"} {
		if got, err := report.ParseRequirement([]string{text}); err == nil {
			t.Errorf("%q is read as %v", text, got)
		}
	}
	if got, err := report.ParseRequirement(nil); err == nil {
		t.Errorf("nothing is read as %v", got)
	}
	if got, err := report.ParseRequirement([]string{"linux/amd64,linux/x86_64", "linux/amd64"}); err != nil || len(got) != 1 {
		t.Errorf("got %v, %v", got, err)
	}
}

func TestStatus(t *testing.T) {
	met, unmet, undetermined := report.Row{Verdict: report.Met}, report.Row{Verdict: report.Unmet}, report.Row{Verdict: report.Undetermined}
	for sentence, row := range map[string]struct {
		rows []report.Row
		want int
	}{
		"all met":                        {[]report.Row{met, met}, 0},
		"unmet":                          {[]report.Row{met, unmet}, 2},
		"undetermined":                   {[]report.Row{undetermined, met}, 3},
		"unmet wins, whichever is first": {[]report.Row{undetermined, unmet}, 2},
	} {
		if got := report.Status(row.rows); got != row.want {
			t.Errorf("%s: %d", sentence, got)
		}
	}
	if got := report.InspectStatus([]report.Row{{Answer: known("x")}}); got != 0 {
		t.Errorf("known: %d", got)
	}
	if got := report.InspectStatus([]report.Row{{Answer: known("x")}, {Answer: failed("x", provider.ClassNotRunnable)}}); got != 3 {
		t.Errorf("an error: %d", got)
	}
}

// rows of every shape, hostile text included.
func rows() []report.Row {
	mirrored := known("busybox", "linux/amd64", "linux/arm/v7")
	mirrored.Architectures, mirrored.Mirror, mirrored.Warnings = []string{"amd64", "arm"}, "mirror.local/busybox", []string{"index and config disagree"}
	windows := known("nano", "windows(10.0.17763.1)/amd64")
	windows.AnonymousFallback = true
	hostile := provider.Answer{Image: "=x\x1b[31m", Err: provider.Errorf(provider.ClassMalformed, "bad\x1b[0m")}
	return []report.Row{
		{Answer: mirrored}, {Answer: windows},
		{Answer: provider.Answer{Image: "bundle", Reference: "quay.io/bundle:1", Digest: sum, Kind: provider.KindManifest, ContentOnly: true}},
		{Answer: failed("gone", provider.ClassNotFound)}, {Answer: hostile},
	}
}

func judged() []report.Row {
	list := rows()
	for i := range list {
		list[i].Workloads = []workloads.Workload{{Kind: "Deployment", Namespace: "ns", Name: "a"}, {Kind: "Job", Name: "b"}}[:1+i%2]
	}
	required, err := report.ParseRequirement([]string{"linux/amd64"})
	if err != nil {
		panic(err)
	}
	report.Judge(list, required)
	return list
}

func TestGolden(t *testing.T) {
	for name, row := range map[string]struct {
		writer report.Writer
		rows   []report.Row
	}{
		"inspect.table":   {report.Writer{Format: report.Table}, rows()},
		"inspect.wide":    {report.Writer{Format: report.Wide}, rows()},
		"inspect.json":    {report.Writer{Format: report.JSON}, rows()},
		"inspect.yaml":    {report.Writer{Format: report.YAML}, rows()},
		"inspect.name":    {report.Writer{Format: report.Name}, rows()},
		"inspect.colours": {report.Writer{Format: report.Table, Colour: true}, rows()},
		"check.table":     {report.Writer{Format: report.Table}, judged()},
		"check.wide":      {report.Writer{Format: report.Wide}, judged()},
		"check.json":      {report.Writer{Format: report.JSON}, judged()},
		"check.name":      {report.Writer{Format: report.Name}, judged()},
		"check.colours":   {report.Writer{Format: report.Table, Colour: true}, judged()},
		"images.csv":      {report.Writer{Format: report.CSV}, judged()},
		"none.json":       {report.Writer{Format: report.JSON}, nil},
		"none.table":      {report.Writer{Format: report.Table}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			var out bytes.Buffer
			if err := row.writer.Write(&out, row.rows); err != nil {
				t.Fatal(err)
			}
			path := filepath.Join("testdata", name)
			if *update {
				if err := os.WriteFile(path, out.Bytes(), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(string(want), out.String()); diff != "" {
				t.Errorf("run with -update after a look; want -, got +:\n%s", diff)
			}
			if !row.writer.Colour && row.writer.Format != report.CSV && bytes.ContainsRune(out.Bytes(), '\x1b') {
				t.Error("a control character came through")
			}
		})
	}
}

// TestInspectIsTheContract: without a requirement and workloads, the objects are
// the contract's and nothing more.
func TestInspectIsTheContract(t *testing.T) {
	var out bytes.Buffer
	if err := (report.Writer{Format: report.JSON}).Write(&out, rows()); err != nil {
		t.Fatal(err)
	}
	var got []json.RawMessage
	if err := json.Unmarshal(out.Bytes(), &got); err != nil {
		t.Fatal(err)
	}
	for i, row := range rows() {
		want, err := json.Marshal(wire.FromAnswer(row.Answer))
		if err != nil {
			t.Fatal(err)
		}
		var compact bytes.Buffer
		if err := json.Compact(&compact, got[i]); err != nil {
			t.Fatal(err)
		}
		if compact.String() != string(want) {
			t.Errorf("got  %s\nwant %s", compact.String(), want)
		}
	}
}

func TestNotes(t *testing.T) {
	got := report.Notes(rows(), report.Table)
	want := []string{
		"warning: busybox: index and config disagree",
		"warning: nano: the registry refused the credentials and answered without any; a kubelet would not pull it",
		"error: gone: not-found: it is not-found",
		`error: "=x\x1b[31m": "malformed: bad\x1b[0m"`,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("want -, got +:\n%s", diff)
	}
	if got := report.Notes(rows(), report.JSON); len(got) != 2 {
		t.Errorf("JSON has the errors itself: %q", got)
	}
}

func TestSummary(t *testing.T) {
	if got, want := report.Summary(judged()), "5 images: 2 met, 1 unmet, 2 undetermined"; got != want {
		t.Errorf("got %q", got)
	}
	if got := report.Summary(rows()); got != "" {
		t.Errorf("nothing was judged: %q", got)
	}
}
