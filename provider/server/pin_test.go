package server_test

import (
	"maps"
	"strings"
	"testing"

	"github.com/archkeeper/archkeeper/provider/imageref"
	"github.com/archkeeper/archkeeper/provider/server"
)

// A caller in the same process is told what PathPin tells others.
func TestPinnerSaysWhatThePathSays(t *testing.T) {
	mirrored := func(ref imageref.Reference) bool { return strings.HasPrefix(ref.Name(), "docker.io/r/mirrored") }
	w := start(t, func(_ *world, o *server.Options) { o.HasTagMirrors = mirrored })
	images := []string{"r/a:1", "r/mirrored:1", "r/not-found:1", "r/malformed:1", "R/upper case", "r/a@" + digest, `{"image":"r/a:1"}`}
	answer := w.do(w.gatekeeperClient(), "POST", w.data+server.PathPin, request(images...))
	want := map[string]string{}
	for _, item := range answer.Response.Items {
		if text, ok := item.Value.(string); ok {
			want[item.Key] = text
		}
	}
	if len(want) != 3 || want["r/mirrored:1"] != "r/mirrored:1" {
		t.Fatalf("the path says %v", want)
	}
	if got := server.Pinner(inspectorFunc(shelf), mirrored)(t.Context(), images); !maps.Equal(got, want) {
		t.Errorf("it says %v, want %v", got, want)
	}
}
