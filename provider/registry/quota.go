package registry

import (
	"net/http"
	"strconv"
	"strings"
	"time"
)

// lowQuota is the part of a pull quota below which refreshes that nobody waits
// for spend nothing.
const lowQuota = 0.2

const maxQuotas = 1024

// quota is what a registry said of a caller's pull quota, in the headers
// ratelimit-limit and ratelimit-remaining, such as "100;w=21600".
// Source: https://docs.docker.com/docker-hub/usage/pulls/.
type quota struct {
	limit, remaining int
	until            time.Time // the end of the window that began when it was read, at the latest
}

// readQuota remembers the headers of an answer to a pull.
func (s *hostState) readQuota(caller who, h http.Header, now time.Time) {
	limit, window, ok := quotaHeader(h.Get("Ratelimit-Limit"))
	if !ok {
		return
	}
	remaining, _, ok := quotaHeader(h.Get("Ratelimit-Remaining"))
	if !ok || limit <= 0 {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, known := s.quotas[caller]; !known && len(s.quotas) >= maxQuotas {
		clear(s.quotas)
	}
	s.quotas[caller] = quota{limit: limit, remaining: remaining, until: now.Add(window)}
}

// quotaLow tells whether a caller has less than a fifth of its pulls left.
func (s *hostState) quotaLow(caller who, now time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	q, ok := s.quotas[caller]
	return ok && now.Before(q.until) && float64(q.remaining) < lowQuota*float64(q.limit)
}

func quotaHeader(value string) (n int, window time.Duration, ok bool) {
	number, parameters, _ := strings.Cut(value, ";")
	n, err := strconv.Atoi(strings.TrimSpace(number))
	if err != nil || n < 0 {
		return 0, 0, false
	}
	window = 6 * time.Hour
	for parameter := range strings.SplitSeq(parameters, ";") {
		if w, found := strings.CutPrefix(strings.TrimSpace(parameter), "w="); found {
			if seconds, err := strconv.ParseInt(w, 10, 32); err == nil && seconds > 0 {
				window = time.Duration(seconds) * time.Second
			}
		}
	}
	return n, window, true
}
