package migrate

import (
	"strings"
	"testing"

	"github.com/archkeeper/archkeeper/controllers/config"
)

const objects = `
apiVersion: multiarch.openshift.io/v1beta1
kind: ClusterPodPlacementConfig
metadata: {name: cluster}
spec:
  logVerbosity: Trace
  namespaceSelector:
    matchExpressions: [{key: multiarch.openshift.io/exclude-pod-placement, operator: DoesNotExist}]
  fallbackArchitecture: amd64
  plugins:
    nodeAffinityScoring:
      enabled: true
      platforms: [{architecture: arm64, weight: 60}, {architecture: amd64, weight: 20}]
    execFormatErrorMonitor: {enabled: true}
---
apiVersion: v1
kind: List
items:
- apiVersion: multiarch.openshift.io/v1beta1
  kind: PodPlacementConfig
  metadata: {name: low, namespace: shop}
  spec:
    plugins: {nodeAffinityScoring: {enabled: true, platforms: [{architecture: amd64, weight: 1}]}}
- apiVersion: multiarch.openshift.io/v1beta1
  kind: PodPlacementConfig
  metadata: {name: high, namespace: shop}
  spec:
    priority: 200
    labelSelector: {matchLabels: {tier: batch}}
    plugins: {nodeAffinityScoring: {enabled: true, platforms: [{architecture: s390x, weight: 100}]}}
- apiVersion: multiarch.openshift.io/v1beta1
  kind: PodPlacementConfig
  metadata: {name: idle, namespace: shop}
- apiVersion: v1
  kind: ConfigMap
  metadata: {name: passed-over}
`

func TestAddNamesTheLineOfTheFile(t *testing.T) {
	for name, tc := range map[string]struct{ text, want string }{
		"broken YAML in the second document": {"kind: A\n---\nkind: B\nspec: [\n", "f.yaml: yaml: line 4: "},
		"a field of another type":            {"kind: A\n---\n# about\napiVersion: multiarch.openshift.io/v1beta1\nkind: ClusterPodPlacementConfig\nspec: []\n", "f.yaml, line 4: "},
		"a second ClusterPodPlacementConfig": {objects + "\n---\n" + objects, "f.yaml, line "},
	} {
		t.Run(name, func(t *testing.T) {
			var r Result
			if err := r.Add("f.yaml", []byte(tc.text)); err == nil || !strings.HasPrefix(err.Error(), tc.want) {
				t.Errorf("%v, want %s...", err, tc.want)
			}
		})
	}
}

func TestTheOperatorsObjectsBecomeOurs(t *testing.T) {
	var r Result
	if err := r.Add("objects.yaml", []byte(objects)); err != nil {
		t.Fatal(err)
	}
	p := r.Configuration.Placement
	if p.Mode != config.ModeObserve {
		t.Errorf("mode is %s, want observe: the operator still acts", p.Mode)
	}
	if p.FallbackArchitecture != "amd64" || len(p.NamespaceSelector.MatchExpressions) != 1 ||
		len(p.Preferred) != 2 || p.Preferred[0] != (config.Preference{Architecture: "arm64", Weight: 60}) {
		t.Errorf("placement is %+v", p)
	}
	if len(r.Lost) != 3 {
		t.Errorf("%d things without a counterpart, want 3 (verbosity, monitor, the idle object): %q", len(r.Lost), r.Lost)
	}
	text, err := r.YAML()
	if err != nil {
		t.Fatal(err)
	}
	docs := strings.Split(string(text), "---\n")
	if len(docs) != 3 {
		t.Fatalf("%d documents, want 3", len(docs))
	}
	// Our own reader takes what we wrote.
	if _, err := config.Parse([]byte(docs[0])); err != nil {
		t.Errorf("the Configuration is refused: %v", err)
	}
	if !strings.Contains(docs[1], "archkeeper-prefer-055-shop-high") || !strings.Contains(docs[2], "archkeeper-prefer-255-shop-low") {
		t.Errorf("the higher priority does not come first:\n%s", text)
	}
}

func TestASecondClusterConfigIsAnError(t *testing.T) {
	var r Result
	err := r.Add("objects.yaml", []byte(objects+"\n---\n"+objects))
	if err == nil || !strings.Contains(err.Error(), "ClusterPodPlacementConfig/cluster") {
		t.Errorf("got %v, want an error that names the object", err)
	}
}

func FuzzAdd(f *testing.F) {
	f.Add([]byte(objects))
	f.Add([]byte("{"))
	f.Fuzz(func(t *testing.T, data []byte) {
		var r Result
		if r.Add("fuzz", data) == nil {
			if _, err := r.YAML(); err != nil {
				t.Error(err)
			}
		}
	})
}
