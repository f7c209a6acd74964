package rego_test

import "testing"

// go test -bench Decide -benchmem ./rego/ | benchstat -
func BenchmarkDecide(b *testing.B) {
	e := evaluator(b)
	for name, in := range map[string]struct {
		spec string
	}{
		"no affinity": {""},
		"two terms":   {withTerms(term(zone), term(ssd))},
	} {
		in := input(b, in.spec, images(known("amd64", "arm64"), known("amd64", "arm64", "s390x")))
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, err := e.Decide(b.Context(), in); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
