package server_test

import (
	"context"
	"encoding/json"
	"testing"

	"github.com/archkeeper/archkeeper/provider"
	"github.com/archkeeper/archkeeper/provider/server"
)

func TestGeneration(t *testing.T) {
	looks := 0
	var generation *server.Generation
	generation = server.NewGeneration(func(context.Context) {
		if looks++; looks == 3 {
			generation.Changed()
		}
	})
	w := start(t, func(_ *world, o *server.Options) { o.Generation = generation })
	ask := func() (g provider.Generation) {
		t.Helper()
		answer := w.do(w.gatekeeperClient(), "GET", w.data+server.PathGeneration, "")
		if answer.StatusCode != 200 {
			t.Fatalf("status %d", answer.StatusCode)
		}
		if err := json.Unmarshal([]byte(answer.text), &g); err != nil {
			t.Fatal(err)
		}
		return g
	}
	first, second := ask(), ask()
	if first != second || first.Instance == "" || first.Changes != 0 {
		t.Errorf("without a change: %+v and %+v", first, second)
	}
	if third := ask(); third.Instance != first.Instance || third.Changes != 1 {
		t.Errorf("after a change that was looked for: %+v", third)
	}
	generation.Changed()
	if fourth := ask(); fourth.Changes != 2 {
		t.Errorf("after a change that was told: %+v", fourth)
	}
	if other := server.NewGeneration().Now(t.Context()); other.Instance == first.Instance {
		t.Error("two instances have one name")
	}
	if answer := w.do(w.gatekeeperClient(), "POST", w.data+server.PathGeneration, "{}"); answer.StatusCode != 405 {
		t.Errorf("POST: status %d", answer.StatusCode)
	}
	without := start(t, nil)
	if answer := without.do(without.gatekeeperClient(), "GET", without.data+server.PathGeneration, ""); answer.StatusCode != 404 {
		t.Errorf("a provider without a generation: status %d", answer.StatusCode)
	}
}
