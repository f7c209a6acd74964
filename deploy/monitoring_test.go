package deploy_test

import (
	"encoding/json"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

var metricName = regexp.MustCompile(`archkeeper_[a-z0-9_]+`)

// made gives every metric that the page of metrics, which is generated from the
// sources, lists; with the names that a histogram has on the wire.
func made(t *testing.T) []string {
	t.Helper()
	page, err := os.ReadFile("../docs/metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for line := range strings.Lines(string(page)) {
		cells := strings.Split(line, "|")
		if len(cells) < 4 || !strings.Contains(cells[1], "`archkeeper_") {
			continue
		}
		name := metricName.FindString(cells[1])
		all = append(all, name)
		if strings.TrimSpace(cells[2]) == "histogram" {
			all = append(all, name+"_bucket", name+"_sum", name+"_count")
		}
	}
	if len(all) < 30 {
		t.Fatalf("the page lists %d metrics", len(all))
	}
	return all
}

func TestThePageListsEveryMetricOfTheSources(t *testing.T) {
	all := made(t)
	quoted := regexp.MustCompile(`"(archkeeper_[a-z0-9_]+)"`)
	for _, room := range []string{"provider", "controllers", "rego", "internal", "cmd"} {
		err := filepath.WalkDir(filepath.Join("..", room), func(path string, _ fs.DirEntry, err error) error {
			if err != nil || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
				return err
			}
			text, err := os.ReadFile(path)
			for _, m := range quoted.FindAllStringSubmatch(string(text), -1) {
				if !slices.Contains(all, m[1]) {
					t.Errorf("%s makes %s, which docs/metrics.md does not list: run make generate", path, m[1])
				}
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
}

func TestAlertsNameMetricsThatExistAndARunbook(t *testing.T) {
	text, err := os.ReadFile("charts/archkeeper/files/alerts.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var file struct {
		Groups []struct {
			Rules []struct {
				Alert       string            `yaml:"alert"`
				Expr        string            `yaml:"expr"`
				Labels      map[string]string `yaml:"labels"`
				Annotations map[string]string `yaml:"annotations"`
			} `yaml:"rules"`
		} `yaml:"groups"`
	}
	if err := yaml.Unmarshal(text, &file); err != nil {
		t.Fatal(err)
	}
	all, alerts := made(t), map[string]bool{}
	for _, group := range file.Groups {
		for _, rule := range group.Rules {
			alerts[rule.Alert] = true
			names := metricName.FindAllString(rule.Expr, -1)
			if len(names) == 0 {
				t.Errorf("%s watches no metric of ours", rule.Alert)
			}
			for _, name := range names {
				if !slices.Contains(all, name) {
					t.Errorf("%s watches %s, which does not exist", rule.Alert, name)
				}
			}
			if rule.Annotations["summary"] == "" || rule.Annotations["description"] == "" || rule.Labels["severity"] == "" {
				t.Errorf("%s has no summary, description or severity", rule.Alert)
			}
			runbook := "../docs/runbooks/" + rule.Alert + ".md"
			if !strings.HasSuffix(rule.Annotations["runbook_url"], "/docs/runbooks/"+rule.Alert+".md") {
				t.Errorf("%s leads to the runbook %s", rule.Alert, rule.Annotations["runbook_url"])
			}
			if _, err := os.Stat(runbook); err != nil {
				t.Errorf("%s: %v", rule.Alert, err)
			}
		}
	}
	pages, err := filepath.Glob("../docs/runbooks/*.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, page := range pages {
		if name := strings.TrimSuffix(filepath.Base(page), ".md"); !alerts[name] {
			t.Errorf("%s is the runbook of no alert", page)
		}
	}
}

func TestTheDashboardShowsMetricsThatExist(t *testing.T) {
	text, err := os.ReadFile("charts/archkeeper/files/dashboard.json")
	if err != nil {
		t.Fatal(err)
	}
	var board struct {
		Panels []struct {
			Title   string `json:"title"`
			Targets []struct {
				Expr string `json:"expr"`
			} `json:"targets"`
		} `json:"panels"`
	}
	if err := json.Unmarshal(text, &board); err != nil {
		t.Fatal(err)
	}
	all := made(t)
	for _, panel := range board.Panels {
		for _, target := range panel.Targets {
			names := metricName.FindAllString(target.Expr, -1)
			if len(names) == 0 {
				t.Errorf("panel %q shows no metric of ours", panel.Title)
			}
			for _, name := range names {
				if !slices.Contains(all, name) {
					t.Errorf("panel %q shows %s, which does not exist", panel.Title, name)
				}
			}
		}
	}
	if len(board.Panels) < 10 {
		t.Errorf("%d panels", len(board.Panels))
	}
}
