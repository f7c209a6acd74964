package cache

import "testing"

// TestWhatWasReadElsewhereReplacesNothing: it may have been put here meanwhile.
func TestWhatWasReadElsewhereReplacesNothing(t *testing.T) {
	for name, test := range map[string]struct {
		before func(t *table[string], k Key)
		want   string
	}{
		"nothing is there":           {func(*table[string], Key) {}, "read"},
		"a younger one is there":     {func(t *table[string], k Key) { t.put(k, "younger") }, "younger"},
		"the same was packed behind": {func(t *table[string], k Key) { t.freeze([]Key{k}, []byte("p")) }, "read"},
	} {
		t.Run(name, func(t *testing.T) {
			values := newTable(1<<20, func(s string) int64 { return int64(len(s)) })
			values.frozen.width, values.frozen.thaw = 1, func(b []byte) string { return string(b) }
			k := KeyOf("k")
			test.before(values, k)
			if got := values.putUnlessThere(k, "read"); got != test.want {
				t.Errorf("it gives %q, want %q", got, test.want)
			}
			if got, ok := values.get(k); !ok || got != test.want {
				t.Errorf("it keeps %q, %v, want %q", got, ok, test.want)
			}
			if entries, _ := values.usage(); entries != 1 {
				t.Errorf("%d entries", entries)
			}
		})
	}
}
