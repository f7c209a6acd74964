package admission_test

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admission/v1"

	"github.com/archkeeper/archkeeper/controllers/admission"
	"github.com/archkeeper/archkeeper/rego"
)

// heard remembers what its Evaluator was asked.
type heard struct {
	admission.Evaluator
	in rego.Input
}

func (h *heard) Decide(ctx context.Context, in rego.Input) (rego.Decision, error) {
	h.in = in
	return h.Evaluator.Decide(ctx, in)
}

// BenchmarkAdmission admits a pod whose images are known, by turns with what
// cannot be spared: decoding the review, one evaluation of the prepared policy
// with its guard, and encoding an answer. It prints how many times as long
// admission takes.
//
//	go test -run '^$' -bench Admission ./controllers/admission
func BenchmarkAdmission(b *testing.B) {
	w := newWorld(b)
	evaluator := &heard{Evaluator: w.options.Evaluator}
	w.options.Evaluator = evaluator
	handler := admission.New(w.options)
	body := review(w.pod(b, "spec: {containers: [{name: a, image: R/both:v1}, {name: b, image: R/amd64:v1}]}"))
	admit := func() []byte {
		recorder := httptest.NewRecorder()
		handler.ServeHTTP(recorder, httptest.NewRequest(http.MethodPost, "/v1/admit/token?timeout=30s", bytes.NewReader(body)))
		if recorder.Code != http.StatusOK {
			b.Fatal(recorder.Code, recorder.Body)
		}
		return recorder.Body.Bytes()
	}
	var answer admissionv1.AdmissionReview
	if err := json.Unmarshal(admit(), &answer); err != nil || len(answer.Response.Patch) == 0 {
		b.Fatal("the pod was not placed", err)
	}
	var took [2]time.Duration
	for b.Loop() {
		started := time.Now()
		admit()
		took[0] += time.Since(started)

		started = time.Now()
		var asked admissionv1.AdmissionReview
		if err := json.Unmarshal(body, &asked); err != nil {
			b.Fatal(err)
		}
		if _, err := evaluator.Evaluator.Decide(b.Context(), evaluator.in); err != nil {
			b.Fatal(err)
		}
		if _, err := json.Marshal(answer); err != nil {
			b.Fatal(err)
		}
		took[1] += time.Since(started)
	}
	b.ReportMetric(took[0].Seconds()*1e6/float64(b.N), "us/admission")
	b.ReportMetric(took[0].Seconds()/took[1].Seconds(), "x-bare")
}
