package chart

import (
	"encoding/json"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/prometheus/model/histogram"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/tsdb/chunkenc"
	"github.com/prometheus/prometheus/tsdb/chunks"
	"github.com/prometheus/prometheus/util/annotations"
	"sigs.k8s.io/yaml"
)

// rule is an alert of the chart.
type rule struct {
	Alert, Expr string
	For         string
	Annotations map[string]string
}

func alerts(t *testing.T) map[string]rule {
	t.Helper()
	text, err := os.ReadFile(chartDir + "/files/alerts.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var file struct{ Groups []struct{ Rules []rule } }
	if err := yaml.Unmarshal(text, &file); err != nil {
		t.Fatal(err)
	}
	found := map[string]rule{}
	for _, group := range file.Groups {
		for _, r := range group.Rules {
			found[r.Alert] = r
		}
	}
	return found
}

// exported gives the metrics of the page that is generated from the sources,
// with their labels; a histogram under the names that it has on the wire.
func exported(t *testing.T) map[string][]string {
	t.Helper()
	page, err := os.ReadFile(root + "/docs/metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	quoted := regexp.MustCompile("`([a-z0-9_]+)`")
	all := map[string][]string{}
	for line := range strings.Lines(string(page)) {
		cells := strings.Split(line, "|")
		if len(cells) < 6 || !strings.Contains(cells[1], "`archkeeper_") {
			continue
		}
		name := quoted.FindStringSubmatch(cells[1])[1]
		var names []string
		for _, m := range quoted.FindAllStringSubmatch(cells[4], -1) {
			names = append(names, m[1])
		}
		all[name] = names
		if strings.TrimSpace(cells[2]) == "histogram" {
			all[name+"_bucket"], all[name+"_sum"], all[name+"_count"] = append(slices.Clone(names), "le"), names, names
		}
	}
	if len(all) < 30 {
		t.Fatalf("the page lists %d metrics", len(all))
	}
	return all
}

// checkExpression says what is the matter with an expression: metrics that the
// program does not export, and labels that they do not have.
func checkExpression(t *testing.T, where, expression string, metrics map[string][]string) {
	t.Helper()
	parsed, err := parser.NewParser(parser.Options{}).ParseExpr(expression)
	if err != nil {
		t.Errorf("%s: %v\n%s", where, err, expression)
		return
	}
	labelled := func(of parser.Node, name string) bool {
		found := false
		parser.Inspect(of, func(node parser.Node, _ []parser.Node) error {
			if v, ok := node.(*parser.VectorSelector); ok && slices.Contains(metrics[v.Name], name) {
				found = true
			}
			return nil
		})
		return found
	}
	seen := 0
	parser.Inspect(parsed, func(node parser.Node, _ []parser.Node) error {
		switch n := node.(type) {
		case *parser.VectorSelector:
			seen++
			if _, ok := metrics[n.Name]; !ok {
				t.Errorf("%s: %q is no metric of ours", where, n.Name)
			}
			for _, m := range n.LabelMatchers {
				if m.Name != labels.MetricName && !slices.Contains(metrics[n.Name], m.Name) {
					t.Errorf("%s: %s has no label %q", where, n.Name, m.Name)
				}
			}
		case *parser.AggregateExpr:
			for _, name := range n.Grouping {
				if !labelled(n.Expr, name) {
					t.Errorf("%s: no metric in %s has the label %q", where, n.Expr, name)
				}
			}
		}
		return nil
	})
	if seen == 0 {
		t.Errorf("%s: %q asks for no metric", where, expression)
	}
}

func TestAlertsAskForMetricsAndLabelsThatTheProgramHas(t *testing.T) {
	metrics := exported(t)
	for name, r := range alerts(t) {
		checkExpression(t, name, r.Expr, metrics)
		for _, text := range r.Annotations {
			for _, m := range regexp.MustCompile(`\$labels\.(\w+)`).FindAllStringSubmatch(text, -1) {
				if !strings.Contains(r.Expr, m[1]) {
					t.Errorf("%s: its text names the label %q, which its expression does not keep", name, m[1])
				}
			}
		}
	}
}

func TestTheDashboardAsksForMetricsAndLabelsThatTheProgramHas(t *testing.T) {
	text, err := os.ReadFile(chartDir + "/files/dashboard.json")
	if err != nil {
		t.Fatal(err)
	}
	var board struct {
		Panels []struct {
			Title   string
			Targets []struct{ Expr, LegendFormat string }
		}
	}
	if err := json.Unmarshal(text, &board); err != nil {
		t.Fatal(err)
	}
	metrics, seen := exported(t), 0
	for _, panel := range board.Panels {
		for _, target := range panel.Targets {
			seen++
			checkExpression(t, panel.Title, target.Expr, metrics)
			for _, m := range regexp.MustCompile(`\{\{\s*(\w+)\s*\}\}`).FindAllStringSubmatch(target.LegendFormat, -1) {
				if !regexp.MustCompile(`by \([^)]*\b` + m[1] + `\b`).MatchString(target.Expr) {
					t.Errorf("%s: the legend names %q, which the expression does not keep", panel.Title, m[1])
				}
			}
		}
	}
	if seen < 10 {
		t.Errorf("%d expressions", seen)
	}
}

// series holds what a Prometheus would have scraped, one sample a minute from
// minute 0, in the notation of promtool's tests: `name{label="x"} 0 0+1x30 _`.
type series []string

// Querier makes series a storage.Queryable.
func (s series) Querier(int64, int64) (storage.Querier, error) {
	return &storage.MockQuerier{SelectMockFunction: func(_ bool, _ *storage.SelectHints, matchers ...*labels.Matcher) storage.SeriesSet {
		set := &seriesSet{}
		for _, text := range s {
			named, values, err := parser.NewParser(parser.Options{}).ParseSeriesDesc(text)
			if err != nil {
				return storage.ErrSeriesSet(err)
			}
			if slices.ContainsFunc(matchers, func(m *labels.Matcher) bool { return !m.Matches(named.Get(m.Name)) }) {
				continue
			}
			var samples []chunks.Sample
			for minute, v := range values {
				if !v.Omitted {
					samples = append(samples, sample{int64(minute) * time.Minute.Milliseconds(), v.Value})
				}
			}
			set.all = append(set.all, storage.NewListSeries(named, samples))
		}
		return set
	}}, nil
}

// sample is a chunks.Sample of a plain number.
type sample struct {
	at    int64 // milliseconds
	value float64
}

func (s sample) T() int64                    { return s.at }
func (sample) ST() int64                     { return 0 }
func (s sample) F() float64                  { return s.value }
func (sample) H() *histogram.Histogram       { return nil }
func (sample) FH() *histogram.FloatHistogram { return nil }
func (sample) Type() chunkenc.ValueType      { return chunkenc.ValFloat }
func (s sample) Copy() chunks.Sample         { return s }

type seriesSet struct {
	all []storage.Series
	at  int
}

func (s *seriesSet) Next() bool                      { s.at++; return s.at <= len(s.all) }
func (s *seriesSet) At() storage.Series              { return s.all[s.at-1] }
func (*seriesSet) Err() error                        { return nil }
func (*seriesSet) Warnings() annotations.Annotations { return nil }

// fires tells whether an alert fires at a minute: its expression gave something
// at that minute and at each one of its `for` before.
func fires(t *testing.T, r rule, s series, minute int) bool {
	t.Helper()
	engine := promql.NewEngine(promql.EngineOpts{
		MaxSamples: 1e6, Timeout: time.Minute, LookbackDelta: 5 * time.Minute,
		NoStepSubqueryIntervalFn: func(int64) int64 { return time.Minute.Milliseconds() },
		Parser:                   parser.NewParser(parser.Options{}),
	})
	defer engine.Close()
	pending := time.Duration(0)
	if r.For != "" {
		var err error
		if pending, err = time.ParseDuration(r.For); err != nil {
			t.Fatal(err)
		}
	}
	for at := minute - int(pending.Minutes()); at <= minute; at++ {
		query, err := engine.NewInstantQuery(t.Context(), s, nil, r.Expr, time.Unix(int64(at)*60, 0))
		if err != nil {
			t.Fatal(err)
		}
		result := query.Exec(t.Context())
		vector, err := result.Vector()
		if err != nil {
			t.Fatal(err)
		}
		empty := len(vector) == 0
		query.Close()
		if empty {
			return false
		}
	}
	return true
}

// Each alert fires on the trouble that it is named after, and is silent beside it.
func TestAlertsFireWhenTheyShould(t *testing.T) {
	type look struct {
		what   string
		series series
		minute int
		fires  bool
	}
	cases := map[string][]look{
		"ArchkeeperProviderDown": {
			{"two providers", series{`archkeeper_provider_requests_in_flight{pod="a"} 0x60`, `archkeeper_provider_requests_in_flight{pod="b"} 1x60`}, 40, false},
			{"one of two is gone", series{`archkeeper_provider_requests_in_flight{pod="a"} 0x60`, `archkeeper_provider_requests_in_flight{pod="b"} 1x10`}, 40, false},
			{"both are gone", series{`archkeeper_provider_requests_in_flight{pod="a"} 0x20`, `archkeeper_provider_requests_in_flight{pod="b"} 1x20`}, 40, true},
			{"both restart", series{`archkeeper_provider_requests_in_flight{pod="a"} 0x20 _x3 0x30`}, 40, false},
		},
		"ArchkeeperControllersDown": {
			{"a controller without placement", series{`archkeeper_certificates_failing{pod="a"} 0x60`}, 40, false},
			{"the controllers are gone", series{`archkeeper_certificates_failing{pod="a"} 0x20`}, 40, true},
		},
		"ArchkeeperGatedPodsGrow": {
			{"a few pods for a moment", series{`archkeeper_placement_held_pods{pod="a"} 0x20 5x5 0x40`}, 30, false},
			{"many pods, but fewer and fewer", series{`archkeeper_placement_held_pods{pod="a"} 100-1x60`, `archkeeper_placement_held_pods{pod="b"} 0x60`}, 50, false},
			{"more and more pods", series{`archkeeper_placement_held_pods{pod="a"} 0+2x60`, `archkeeper_placement_held_pods{pod="b"} 0x60`}, 50, true},
		},
		"ArchkeeperPodsReleasedUndetermined": {
			{"pods are placed", series{`archkeeper_placement_pods_total{action="place",reason="Placed"} 0+9x60`}, 50, false},
			{"one is released", series{`archkeeper_placement_pods_total{action="release",reason="DeadlineExceeded"} 0x30 1x30`}, 50, false},
			{"many are released", series{`archkeeper_placement_pods_total{action="release",reason="DeadlineExceeded"} 0x30 9x30`}, 50, true},
		},
		"ArchkeeperCertificateExpires": {
			{"weeks are left", series{`archkeeper_certificates_expiry_timestamp_seconds{secret="ca"} 2000000x120`}, 100, false},
			{"a day is left", series{`archkeeper_certificates_expiry_timestamp_seconds{secret="ca"} 86400x120`}, 100, true},
			{"a day is left of what the provider serves", series{`archkeeper_provider_certificate_expiry_timestamp_seconds 86400x120`}, 100, true},
		},
		"ArchkeeperCertificatesNotKept": {
			{"an attempt failed", series{`archkeeper_certificates_failing 0x20 1x3 0x30`}, 50, false},
			{"all attempts fail", series{`archkeeper_certificates_failing{pod="a"} 0x20 1x40`, `archkeeper_certificates_failing{pod="b"} 0x60`}, 50, true},
		},
		"ArchkeeperRegistryCircuitOpen": {
			{"a registry is back", series{`archkeeper_registry_circuit_open{registry="r"} 1x5 0x60`}, 50, false},
			{"a registry stays away", series{`archkeeper_registry_circuit_open{registry="r"} 0x10 1x60`, `archkeeper_registry_circuit_open{registry="s"} 0x60`}, 50, true},
		},
		"ArchkeeperPolicyFails": {
			{"none failed", series{`archkeeper_policy_failures_total{policy="user",kind="error"} 0x60`}, 50, false},
			{"the first failure", series{`archkeeper_policy_failures_total{policy="user",kind="error"} 0x40 1x20`}, 50, true},
			{"an old one", series{`archkeeper_policy_failures_total{policy="user",kind="error"} 0x10 1x60`}, 50, false},
		},
		"ArchkeeperMirrorConflict": {
			{"a warning", series{`archkeeper_mirrors_problems{type="warning"} 3x60`, `archkeeper_mirrors_problems{type="conflict"} 0x60`}, 50, false},
			{"a conflict", series{`archkeeper_mirrors_problems{type="conflict"} 1x60`}, 50, true},
		},
		"ArchkeeperConflictingWriter": {
			{"another condition", series{`archkeeper_importmode_condition{type="Degraded"} 1x60`}, 50, false},
			{"a second writer", series{`archkeeper_importmode_condition{type="ConflictingWriter"} 1x60`}, 50, true},
		},
		"ArchkeeperPlacementRefused": {
			{"a conflict, which is tried again", series{`archkeeper_placement_failures_total{kind="conflict"} 0x40 9x20`}, 50, false},
			{"a patch is refused", series{`archkeeper_placement_failures_total{kind="invalid"} 0x40 1x20`}, 50, true},
		},
		"ArchkeeperProviderPanics": {
			{"none", series{`archkeeper_provider_panics_total 0x60`}, 50, false},
			{"one", series{`archkeeper_provider_panics_total 0x20 1x40`}, 50, true},
		},
	}
	for name, r := range alerts(t) {
		both := map[bool]bool{}
		for _, c := range cases[name] {
			t.Run(name+", "+c.what, func(t *testing.T) {
				both[c.fires] = true
				if got := fires(t, r, c.series, c.minute); got != c.fires {
					t.Errorf("fires: %v, want %v\n%s\n%s", got, c.fires, r.Expr, strings.Join(c.series, "\n"))
				}
			})
		}
		if len(both) != 2 {
			t.Errorf("%s: a case where it fires and one where it does not are needed", name)
		}
	}
}
