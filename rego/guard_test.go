package rego_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/archkeeper/archkeeper/rego"
)

// replaced is an evaluator whose whole policy is the given decision, and what it
// logs and counts.
type replaced struct {
	*rego.Evaluator
	log     *bytes.Buffer
	metrics *prometheus.Registry
}

func write(t *testing.T, dir string, files map[string]string) {
	t.Helper()
	for name, content := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

func withPolicy(t *testing.T, path string, change ...func(*rego.Options)) replaced {
	t.Helper()
	r := replaced{log: &bytes.Buffer{}, metrics: prometheus.NewRegistry()}
	options := rego.Options{
		UserPolicy:   path,
		UserDeadline: 10 * time.Second,
		Log:          slog.New(slog.NewTextHandler(r.log, nil)),
		Metrics:      rego.NewMetrics(r.metrics),
	}
	for _, f := range change {
		f(&options)
	}
	var err error
	if r.Evaluator, err = rego.New(t.Context(), options); err != nil {
		t.Fatal(err)
	}
	return r
}

func (r replaced) failures(t *testing.T, policy, kind string) float64 {
	t.Helper()
	families, err := r.metrics.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, family := range families {
		if family.GetName() != "archkeeper_policy_failures_total" {
			continue
		}
		for _, m := range family.GetMetric() {
			labels := map[string]string{}
			for _, l := range m.GetLabel() {
				labels[l.GetName()] = l.GetValue()
			}
			if labels["policy"] == policy && labels["kind"] == kind {
				return m.GetCounter().GetValue()
			}
		}
	}
	return 0
}

// policyThatSays decides always the same.
func policyThatSays(decision string) map[string]string {
	return map[string]string{"p.rego": "package archkeeper.placement\n\ndecision := " + decision + "\n"}
}

const required = "/spec/affinity/nodeAffinity/requiredDuringSchedulingIgnoredDuringExecution"

func op(op, path, value string) string {
	if value == "" {
		return fmt.Sprintf(`{"op": %q, "path": %q}`, op, path)
	}
	return fmt.Sprintf(`{"op": %q, "path": %q, "value": %s}`, op, path, value)
}

const gateOff = `{"op": "remove", "path": "/spec/schedulingGates"}`

// Every case is a decision that a policy might give, on a pod that is gated (or
// not, at admission), and whether the guard lets it past.
func TestTheGuard(t *testing.T) {
	expr := func(s string) string { return `{"matchExpressions": [` + s + `]}` }
	inArm := `{"key": "kubernetes.io/arch", "operator": "In", "values": ["arm64"]}`
	zoneA := `{"key": "zone", "operator": "In", "values": ["a"]}`
	podSpec := withTerms(term(zone), "{}") + `
tolerations: [{key: a, operator: Exists}]
nodeSelector: {disk: ssd}
`
	withPreferred := `affinity: {nodeAffinity: {preferredDuringSchedulingIgnoredDuringExecution: [{weight: 1, preference: {matchExpressions: [` + zone + `]}}]}}`
	dir := t.TempDir()
	write(t, dir, policyThatSays("input.config.decision"))
	e := withPolicy(t, dir)
	for name, tc := range map[string]struct {
		spec     string
		admit    bool
		pin      bool
		deadline string // of the configuration; "" when it names none
		action   string
		patch    []string
		change   func(*rego.Input)
		rule     string // "" when it passes
	}{
		"a release":                                {action: "release", patch: []string{gateOff}},
		"a hold":                                   {action: "hold"},
		"a hold until the deadline":                {action: "hold", change: heldFor(120)},
		"a hold past the deadline":                 {action: "hold", change: heldFor(122), rule: "deadline"},
		"a hold past another deadline":             {action: "hold", deadline: "10s", change: heldFor(12), rule: "deadline"},
		"a hold before another deadline":           {action: "hold", deadline: "5m", change: heldFor(122)},
		"a hold that writes":                       {action: "hold", patch: []string{op("add", "/metadata/labels", `{"archkeeper.io/x": "y"}`)}, rule: "action"},
		"ignore on a gated pod":                    {action: "ignore", rule: "action"},
		"gate on a gated pod":                      {action: "gate", rule: "action"},
		"an action that is none":                   {action: "explode", rule: "action"},
		"a place that keeps the gate":              {action: "place", rule: "gates"},
		"a release that keeps the gate":            {action: "release", rule: "gates"},
		"a hold at admission":                      {admit: true, action: "hold", rule: "action"},
		"a gate at admission":                      {admit: true, action: "gate", patch: []string{op("add", "/spec/schedulingGates", `[{"name": "archkeeper.io/architecture"}]`)}},
		"a gate twice":                             {admit: true, action: "gate", patch: []string{op("add", "/spec/schedulingGates", `[{"name": "archkeeper.io/architecture"}, {"name": "archkeeper.io/architecture"}]`)}, rule: "gates"},
		"another gate at admission":                {admit: true, action: "ignore", patch: []string{op("add", "/spec/schedulingGates", `[{"name": "x"}]`)}, rule: "gates"},
		"a gate on a bound pod":                    {admit: true, spec: "nodeName: node-1", action: "gate", patch: []string{op("add", "/spec/schedulingGates", `[{"name": "archkeeper.io/architecture"}]`)}, rule: "action"},
		"a gate that is not added":                 {admit: true, action: "gate", rule: "gates"},
		"an expression behind the others":          {spec: podSpec, action: "place", patch: []string{gateOff, op("add", required+"/nodeSelectorTerms/0/matchExpressions/-", inArm)}},
		"an expression before the others":          {spec: podSpec, action: "place", patch: []string{gateOff, op("add", required+"/nodeSelectorTerms/0/matchExpressions/0", inArm)}, rule: "terms"},
		"an empty term made to match":              {spec: podSpec, action: "place", patch: []string{gateOff, op("add", required+"/nodeSelectorTerms/1/matchExpressions", "["+inArm+"]")}, rule: "terms"},
		"a term removed":                           {spec: podSpec, action: "place", patch: []string{gateOff, op("remove", required+"/nodeSelectorTerms/1", "")}, rule: "terms"},
		"a term ORed":                              {spec: podSpec, action: "place", patch: []string{gateOff, op("add", required+"/nodeSelectorTerms/-", expr(inArm))}, rule: "terms"},
		"a term ORed at admission":                 {spec: podSpec, admit: true, action: "place", patch: []string{op("add", required+"/nodeSelectorTerms/-", expr(inArm))}, rule: "terms"},
		"a term multiplied at admission":           {spec: podSpec, admit: true, action: "place", patch: []string{op("replace", required+"/nodeSelectorTerms", "["+expr(zoneA+","+inArm)+","+expr(zoneA)+",{}]")}},
		"a term multiplied on a gated pod":         {spec: podSpec, action: "place", patch: []string{gateOff, op("replace", required+"/nodeSelectorTerms", "["+expr(zoneA+","+inArm)+","+expr(zoneA)+",{}]")}, rule: "terms"},
		"a term dropped at admission":              {spec: podSpec, admit: true, action: "place", patch: []string{op("replace", required+"/nodeSelectorTerms", "["+expr(zoneA)+"]")}, rule: "terms"},
		"an empty term made to match at admission": {spec: podSpec, admit: true, action: "place", patch: []string{op("replace", required+"/nodeSelectorTerms/1", expr(inArm))}, rule: "terms"},
		"the affinity removed":                     {spec: podSpec, action: "place", patch: []string{gateOff, op("remove", "/spec/affinity", "")}, rule: "terms"},
		"no affinity before, terms now":            {action: "place", patch: []string{gateOff, op("add", "/spec/affinity", `{"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [`+expr(inArm)+`]}}}`)}},
		"no affinity before, no terms now":         {action: "place", patch: []string{gateOff, op("add", "/spec/affinity", `{"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": []}}}`)}, rule: "terms"},
		"no affinity before, an empty term now":    {action: "place", patch: []string{gateOff, op("add", "/spec/affinity", `{"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [{}]}}}`)}, rule: "terms"},
		"In without values":                        {spec: podSpec, action: "place", patch: []string{gateOff, op("add", required+"/nodeSelectorTerms/0/matchExpressions/-", `{"key": "a", "operator": "In", "values": []}`)}, rule: "expression"},
		"In of a value that is none":               {spec: podSpec, action: "place", patch: []string{gateOff, op("add", required+"/nodeSelectorTerms/0/matchExpressions/-", `{"key": "a", "operator": "In", "values": ["a,b"]}`)}, rule: "expression"},
		"a key that is none":                       {spec: podSpec, action: "place", patch: []string{gateOff, op("add", required+"/nodeSelectorTerms/0/matchExpressions/-", `{"key": "a b", "operator": "Exists"}`)}, rule: "expression"},
		"Exists with values":                       {spec: podSpec, action: "place", patch: []string{gateOff, op("add", required+"/nodeSelectorTerms/0/matchExpressions/-", `{"key": "a", "operator": "Exists", "values": ["x"]}`)}, rule: "expression"},
		"Gt of a word":                             {spec: podSpec, action: "place", patch: []string{gateOff, op("add", required+"/nodeSelectorTerms/0/matchExpressions/-", `{"key": "a", "operator": "Gt", "values": ["x"]}`)}, rule: "expression"},
		"Gt of two":                                {spec: podSpec, action: "place", patch: []string{gateOff, op("add", required+"/nodeSelectorTerms/0/matchExpressions/-", `{"key": "a", "operator": "Gt", "values": ["1", "2"]}`)}, rule: "expression"},
		"an operator that is none":                 {spec: podSpec, action: "place", patch: []string{gateOff, op("add", required+"/nodeSelectorTerms/0/matchExpressions/-", `{"key": "a", "operator": "Like"}`)}, rule: "expression"},
		"pod affinity":                             {action: "place", patch: []string{gateOff, op("add", "/spec/affinity", `{"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": []}}`)}, rule: "affinity"},
		"a preference":                             {spec: withPreferred, action: "place", patch: []string{gateOff, op("add", "/spec/affinity/nodeAffinity/preferredDuringSchedulingIgnoredDuringExecution/-", `{"weight": 5, "preference": `+expr(inArm)+`}`)}},
		"a preference too heavy":                   {spec: withPreferred, action: "place", patch: []string{gateOff, op("add", "/spec/affinity/nodeAffinity/preferredDuringSchedulingIgnoredDuringExecution/-", `{"weight": 101, "preference": `+expr(inArm)+`}`)}, rule: "preferred"},
		"a preference removed":                     {spec: withPreferred, action: "place", patch: []string{gateOff, op("remove", "/spec/affinity/nodeAffinity/preferredDuringSchedulingIgnoredDuringExecution/0", "")}, rule: "preferred"},
		"a preference changed":                     {spec: withPreferred, action: "place", patch: []string{gateOff, op("replace", "/spec/affinity/nodeAffinity/preferredDuringSchedulingIgnoredDuringExecution/0/weight", "2")}, rule: "preferred"},
		"a toleration":                             {spec: podSpec, action: "place", patch: []string{gateOff, op("add", "/spec/tolerations/-", `{"key": "b", "value": "c", "effect": "NoSchedule"}`)}},
		"a toleration changed":                     {spec: podSpec, action: "place", patch: []string{gateOff, op("replace", "/spec/tolerations/0/key", `"b"`)}, rule: "tolerations"},
		"a toleration removed":                     {spec: podSpec, action: "place", patch: []string{gateOff, op("remove", "/spec/tolerations", "")}, rule: "tolerations"},
		"a toleration without key":                 {spec: podSpec, action: "place", patch: []string{gateOff, op("add", "/spec/tolerations/-", `{"value": "c"}`)}, rule: "tolerations"},
		"a toleration of an effect that is none":   {spec: podSpec, action: "place", patch: []string{gateOff, op("add", "/spec/tolerations/-", `{"operator": "Exists", "effect": "Never"}`)}, rule: "tolerations"},
		"a node selector entry":                    {spec: podSpec, action: "place", patch: []string{gateOff, op("add", "/spec/nodeSelector/kubernetes.io~1arch", `"arm64"`)}},
		"a node selector entry that is none":       {spec: podSpec, action: "place", patch: []string{gateOff, op("add", "/spec/nodeSelector/a", `"b,c"`)}, rule: "nodeSelector"},
		"a node selector entry changed":            {spec: podSpec, action: "place", patch: []string{gateOff, op("replace", "/spec/nodeSelector/disk", `"hdd"`)}, rule: "nodeSelector"},
		"a label of ours":                          {action: "place", patch: []string{gateOff, op("add", "/metadata/labels", `{"x.archkeeper.io/a": "b"}`)}},
		"a label of others":                        {action: "place", patch: []string{gateOff, op("add", "/metadata/labels", `{"app": "b"}`)}, rule: "metadata"},
		"a label of those who sound like us":       {action: "place", patch: []string{gateOff, op("add", "/metadata/labels", `{"notarchkeeper.io/a": "b"}`)}, rule: "metadata"},
		"a label named image":                      {action: "place", patch: []string{gateOff, op("add", "/metadata/labels", `{}`), op("add", "/metadata/labels/image", `"b"`)}, rule: "metadata"},
		"the opt-out label":                        {action: "place", patch: []string{gateOff, op("add", "/metadata/labels", `{"archkeeper.io/placement": "disabled"}`)}, rule: "metadata"},
		"a label value that is none":               {action: "place", patch: []string{gateOff, op("add", "/metadata/labels", `{"archkeeper.io/a": "b,c"}`)}, rule: "metadata"},
		"a label key that is none":                 {action: "place", patch: []string{gateOff, op("add", "/metadata/labels", `{"archkeeper.io/": "b"}`)}, rule: "metadata"},
		"an annotation of ours":                    {action: "place", patch: []string{gateOff, op("add", "/metadata/annotations", `{"archkeeper.io/a": "b,c"}`)}},
		"an annotation of others":                  {action: "place", patch: []string{gateOff, op("add", "/metadata/annotations", `{"a": "b"}`)}, rule: "metadata"},
		"an owner":                                 {action: "place", patch: []string{gateOff, op("add", "/metadata/ownerReferences", `[]`)}, rule: "path"},
		"a finalizer":                              {action: "place", patch: []string{gateOff, op("add", "/metadata/finalizers", `["x"]`)}, rule: "path"},
		"privileges":                               {action: "place", patch: []string{gateOff, op("add", "/spec/hostNetwork", `true`)}, rule: "path"},
		"a command":                                {action: "place", patch: []string{gateOff, op("add", "/spec/containers/0/command", `["x"]`)}, rule: "path"},
		"everything at once":                       {action: "place", patch: []string{op("replace", "", `{}`)}, rule: "path"},
		"the whole spec":                           {action: "place", patch: []string{op("replace", "/spec", `{}`)}, rule: "path"},
		"a test operation":                         {action: "release", patch: []string{op("test", "/spec/schedulingGates", `[]`), gateOff}, rule: "operation"},
		"a move":                                   {action: "release", patch: []string{`{"op": "move", "from": "/spec/containers", "path": "/spec/affinity"}`, gateOff}, rule: "operation"},
		"a path that is not there":                 {action: "place", patch: []string{gateOff, op("remove", "/spec/affinity/nodeAffinity", "")}, rule: "patch"},
		"a value that is none":                     {action: "place", patch: []string{gateOff, op("add", "/spec/affinity", `"x"`)}, rule: "patch"},
		"an image, pinning off":                    {action: "place", patch: []string{gateOff, op("replace", "/spec/containers/0/image", `"a@sha256:1"`)}, change: pinned, rule: "path"},
		"an image, pinning on":                     {action: "place", patch: []string{gateOff, op("replace", "/spec/containers/0/image", `"a@sha256:1"`)}, pin: true, change: pinned},
		"another image, pinning on":                {action: "place", patch: []string{gateOff, op("replace", "/spec/containers/0/image", `"evil@sha256:1"`)}, pin: true, change: pinned, rule: "path"},
		"an image that is not there":               {action: "place", patch: []string{gateOff, op("replace", "/spec/containers/7/image", `"a@sha256:1"`)}, pin: true, change: pinned, rule: "path"},
	} {
		t.Run(name, func(t *testing.T) {
			in := input(t, tc.spec, images(known("amd64")))
			if !tc.admit {
				gated(&in)
			}
			if tc.change != nil {
				tc.change(&in)
			}
			decision := fmt.Sprintf(`{"action": %q, "architectures": [], "reason": "Test", "message": "m", "patch": [%s]}`, tc.action, strings.Join(tc.patch, ", "))
			in.Config = json.RawMessage(fmt.Sprintf(`{"pin": %t, "decision": %s}`, tc.pin, decision))
			if tc.deadline != "" {
				in.Config = json.RawMessage(fmt.Sprintf(`{"holdDeadline": %q, "decision": %s}`, tc.deadline, decision))
			}
			before := e.failures(t, "user", "guard")
			d, err := e.Decide(t.Context(), in)
			if err != nil {
				t.Fatal(err)
			}
			if passed := d.Reason == "Test"; passed != (tc.rule == "") {
				t.Errorf("passed: %t, want rule %q; the log says %s", passed, tc.rule, e.log)
			}
			if tc.rule == "" {
				return
			}
			// A fault that is the last one's again is not logged again.
			lines := strings.Split(strings.TrimSpace(e.log.String()), "\n")
			if last := lines[len(lines)-1]; !strings.Contains(last, "policy guard: "+tc.rule+": ") {
				t.Errorf("the log does not name rule %q: %s", tc.rule, last)
			}
			if got := e.failures(t, "user", "guard") - before; got != 1 {
				t.Errorf("%v guard failures counted", got)
			}
			if d.Reason == rego.ReasonPolicyFailed {
				t.Errorf("the built-in policy did not decide: %s", d.Message)
			}
		})
	}
}

func pinned(in *rego.Input) {
	image := in.Images["a"]
	image.Pinned = "a@sha256:1"
	in.Images = map[string]rego.Image{"a": image}
}

func TestAUserPolicyThatFailsIsSetAside(t *testing.T) {
	for name, tc := range map[string]struct {
		policy, kind string
		deadline     time.Duration
	}{
		"no decision":         {policy: "decision := {} if false", kind: "error"},
		"a wrong shape":       {policy: `decision := "place"`, kind: "error"},
		"two decisions":       {policy: "decision := {\"a\": 1} if true\ndecision := {\"a\": 2} if true", kind: "error"},
		"a builtin that errs": {policy: `decision := {"action": json.unmarshal("{")}`, kind: "error"},
		"a reason for humans": {policy: `decision := {"action": "place", "architectures": [], "reason": "not camel", "message": "", "patch": []}`, kind: "error"},
		"an endless thought": {
			policy:   `decision := {"action": "release", "n": n} if n := count([1 | some a in numbers.range(1, 10000); some b in numbers.range(1, 10000); a * b == -1])`,
			kind:     "deadline",
			deadline: 50 * time.Millisecond,
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			write(t, dir, map[string]string{"p.rego": "package archkeeper.placement\n\n" + tc.policy + "\n"})
			e := withPolicy(t, dir, func(o *rego.Options) {
				if tc.deadline > 0 {
					o.UserDeadline = tc.deadline
				}
			})
			for range 2 {
				d, err := e.Decide(t.Context(), input(t, "", images(known("amd64"))))
				if err != nil || d.Reason != rego.ReasonPlaced {
					t.Fatalf("%+v, %v", d, err)
				}
			}
			if got := e.failures(t, "user", tc.kind); got != 2 {
				t.Errorf("%v failures of kind %s counted", got, tc.kind)
			}
			if got := strings.Count(e.log.String(), "a placement policy failed"); got != 1 {
				t.Errorf("said %d times: %s", got, e.log)
			}
		})
	}
}

func TestACancelledCallerIsNotThePolicysFault(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, policyThatSays(`{"action": "ignore", "architectures": [], "reason": "Test", "message": "", "patch": []}`))
	e := withPolicy(t, dir)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := e.Decide(ctx, input(t, "", images(known("amd64")))); err == nil {
		t.Error("decided")
	}
	if got := e.failures(t, "user", "error") + e.failures(t, "user", "deadline"); got != 0 {
		t.Errorf("%v failures counted", got)
	}
}

func TestUserPolicies(t *testing.T) {
	exempt := `package archkeeper.extension

exempt contains data.why if input.pod.metadata.namespace == "ns"
`
	t.Run("an extension with data", func(t *testing.T) {
		dir := t.TempDir()
		write(t, dir, map[string]string{"e.rego": exempt, "data.yaml": "why: because", "e_test.rego": "package broken {", "README.md": "x"})
		d, err := withPolicy(t, dir).Decide(t.Context(), input(t, "", images(known("amd64"))))
		if err != nil || d.Reason != "Exempt" || d.Message != "because" {
			t.Errorf("%+v, %v", d, err)
		}
	})
	t.Run("data below a folder", func(t *testing.T) {
		dir := t.TempDir()
		write(t, dir, map[string]string{"e.rego": strings.ReplaceAll(exempt, "data.why", "data.a.b.why"), "a/b/data.json": `{"why": "deep"}`})
		d, err := withPolicy(t, dir).Decide(t.Context(), input(t, "", images(known("amd64"))))
		if err != nil || d.Message != "deep" {
			t.Errorf("%+v, %v", d, err)
		}
	})
	t.Run("a mounted ConfigMap", func(t *testing.T) {
		dir := t.TempDir()
		write(t, dir, map[string]string{"..2026/e.rego": exempt, "..2026/data.json": `{"why": "mounted"}`})
		for link, target := range map[string]string{"..data": "..2026", "e.rego": "..data/e.rego", "data.json": "..data/data.json"} {
			if err := os.Symlink(target, filepath.Join(dir, link)); err != nil {
				t.Fatal(err)
			}
		}
		d, err := withPolicy(t, dir).Decide(t.Context(), input(t, "", images(known("amd64"))))
		if err != nil || d.Message != "mounted" {
			t.Errorf("%+v, %v", d, err)
		}
	})
	for name, module := range map[string]string{
		"the network":     `decision := http.send({"method": "get", "url": "http://127.0.0.1"})`,
		"the environment": `decision := opa.runtime()`,
		"name resolution": `decision := net.lookup_ip_addr("localhost")`,
		"a syntax error":  `decision := `,
		"an unknown word": `decision := nonsense`,
	} {
		t.Run("refused: "+name, func(t *testing.T) {
			dir := t.TempDir()
			write(t, dir, map[string]string{"p.rego": "package archkeeper.placement\n\n" + module + "\n"})
			if _, err := rego.New(t.Context(), rego.Options{UserPolicy: dir}); err == nil || !strings.Contains(err.Error(), dir) {
				t.Errorf("error %v", err)
			}
		})
	}
	for name, files := range map[string]map[string]string{
		"no module":       {"data.json": "{}"},
		"data twice":      {"e.rego": exempt, "data.json": `{"why": "a"}`, "data.yaml": "why: b"},
		"data that is no": {"e.rego": exempt, "data.json": `[]`},
		"a large module":  {"e.rego": exempt + strings.Repeat("#", 1<<20)},
	} {
		t.Run("refused: "+name, func(t *testing.T) {
			dir := t.TempDir()
			write(t, dir, files)
			if _, err := rego.New(t.Context(), rego.Options{UserPolicy: dir}); err == nil {
				t.Error("taken")
			}
		})
	}
	t.Run("refused: a path that is not there", func(t *testing.T) {
		if _, err := rego.New(t.Context(), rego.Options{UserPolicy: filepath.Join(t.TempDir(), "x")}); err == nil {
			t.Error("taken")
		}
	})
}

func TestReloadKeepsTheLastGoodPolicy(t *testing.T) {
	dir := t.TempDir()
	says := func(reason string) map[string]string {
		return policyThatSays(fmt.Sprintf(`{"action": "ignore", "architectures": [], "reason": %q, "message": "", "patch": []}`, reason))
	}
	write(t, dir, says("First"))
	e := withPolicy(t, dir)
	expect := func(reason string) {
		t.Helper()
		if d, err := e.Decide(t.Context(), input(t, "", images(known("amd64")))); err != nil || d.Reason != reason {
			t.Errorf("%+v, %v; want %s", d, err, reason)
		}
	}
	expect("First")
	write(t, dir, map[string]string{"p.rego": "package archkeeper.placement\n\nbroken"})
	for range 3 {
		e.Look(t.Context())
	}
	expect("First")
	if got := strings.Count(e.log.String(), "last good one stays"); got != 1 {
		t.Errorf("said %d times: %s", got, e.log)
	}
	write(t, dir, says("Second"))
	e.Look(t.Context())
	e.Look(t.Context())
	expect("Second")
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	e.Look(t.Context())
	expect("Second")
	if err := testutil.GatherAndCompare(e.metrics, strings.NewReader(`
# HELP archkeeper_policy_reloads_total Changes of the user policy, by result (loaded, failed).
# TYPE archkeeper_policy_reloads_total counter
archkeeper_policy_reloads_total{result="failed"} 2
archkeeper_policy_reloads_total{result="loaded"} 1
`), "archkeeper_policy_reloads_total"); err != nil {
		t.Error(err)
	}
}

func TestRunLooksAtEachInterval(t *testing.T) {
	dir := t.TempDir()
	ignore := `{"action": "ignore", "architectures": [], "reason": %q, "message": "", "patch": []}`
	write(t, dir, policyThatSays(fmt.Sprintf(ignore, "First")))
	clock := clocktesting.NewFakeClock(time.Now())
	e := withPolicy(t, dir, func(o *rego.Options) { o.Clock = clock })
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- e.Run(ctx) }()
	for !clock.HasWaiters() {
		time.Sleep(time.Millisecond)
	}
	write(t, dir, policyThatSays(fmt.Sprintf(ignore, "Second")))
	deadline := time.Now().Add(30 * time.Second)
	for {
		clock.Step(time.Second)
		d, err := e.Decide(t.Context(), input(t, "", images(known("amd64"))))
		if err != nil {
			t.Fatal(err)
		}
		if d.Reason == "Second" {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("the changed policy was never taken")
		}
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// Every pod comes to its deadline; what its policy does then is one fault.
func TestAPolicyThatHoldsForEverIsSaidOnce(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, policyThatSays(`{"action": "hold", "architectures": [], "reason": "Test", "message": "", "patch": []}`))
	e := withPolicy(t, dir)
	for _, held := range []float64{121, 122, 130, 3600} {
		unknown := rego.Image{Status: rego.StatusUnknown, Class: "timeout"}
		d, err := e.Decide(t.Context(), input(t, "", images(unknown), gated, heldFor(held)))
		if err != nil || d.Action != rego.ActionRelease || d.Reason != rego.ReasonDeadlineExceeded {
			t.Errorf("held for %v s: %s %s, %v", held, d.Action, d.Reason, err)
		}
	}
	if got := strings.Count(e.log.String(), "a placement policy failed"); got != 1 {
		t.Errorf("said %d times: %s", got, e.log)
	}
}
