package archkeeper

import (
	"context"
	"io"
	"net/http"
	"strconv"
	"strings"
)

// Metric reads one value from the probe port of a process: of the series as it is
// written with its labels, or of the first one of that name. found is false when
// there is none yet.
func Metric(ctx context.Context, probe, series string) (value float64, found bool, err error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, probe+"/metrics", nil)
	if err != nil {
		return 0, false, err
	}
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		return 0, false, err
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(io.LimitReader(answer.Body, 8<<20))
	if err != nil {
		return 0, false, err
	}
	for line := range strings.Lines(string(text)) {
		name, number, ok := strings.Cut(strings.TrimSpace(line), " ")
		if bare, _, _ := strings.Cut(name, "{"); ok && (name == series || bare == series) {
			value, err := strconv.ParseFloat(number, 64)
			return value, true, err
		}
	}
	return 0, false, nil
}
