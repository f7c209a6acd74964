package register

import (
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
)

func counter(name string) prometheus.Counter {
	return prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: "A counter."})
}

func TestMetrics(t *testing.T) {
	registry := prometheus.NewRegistry()
	one, two := counter("one_total"), counter("two_total")
	if err := Metrics(registry, "room", one, two); err != nil {
		t.Fatal(err)
	}
	if n, err := testutil.GatherAndCount(registry); err != nil || n != 2 {
		t.Errorf("%d metrics, %v, want 2", n, err)
	}
	if err := Metrics(registry, "room", counter("three_total"), two); err == nil || !strings.HasPrefix(err.Error(), "room: register metrics: ") {
		t.Errorf("registered twice: %v", err)
	}
	if err := Metrics(nil, "room", one); err != nil {
		t.Errorf("without a registerer: %v", err)
	}
}
