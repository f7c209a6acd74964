package registry

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestChallenges(t *testing.T) {
	for header, want := range map[string][]challenge{
		`Bearer realm="https://auth.example/token",service="registry.example",scope="repository:a/b:pull"`: {
			{"bearer", map[string]string{"realm": "https://auth.example/token", "service": "registry.example", "scope": "repository:a/b:pull"}}},
		`Bearer realm=https://auth.example/token`:       {{"bearer", map[string]string{"realm": "https://auth.example/token"}}},
		`BASIC Realm = "a \"quoted\" realm"`:            {{"basic", map[string]string{"realm": `a "quoted" realm`}}},
		`Basic realm="a", Bearer realm="b",service="c"`: {{"basic", map[string]string{"realm": "a"}}, {"bearer", map[string]string{"realm": "b", "service": "c"}}},
		`Negotiate, Basic realm="a"`:                    {{"negotiate", map[string]string{}}, {"basic", map[string]string{"realm": "a"}}},
		`Bearer realm="a",realm="b"`:                    {{"bearer", map[string]string{"realm": "a"}}},
		`Bearer realm="unclosed`:                        {{"bearer", map[string]string{}}},
		`realm="without a scheme"`:                      nil,
		``:                                              nil,
		`,,,`:                                           nil,
	} {
		if diff := cmp.Diff(want, parseChallenges(header), cmp.AllowUnexported(challenge{})); diff != "" {
			t.Errorf("%s (-want +got):\n%s", header, diff)
		}
	}
	if got := challenges(http.Header{"Www-Authenticate": {strings.Repeat("a", maxChallenge+1), "Basic"}}); len(got) != 1 || got[0].scheme != "basic" {
		t.Errorf("got %v", got)
	}
}

func FuzzChallenges(f *testing.F) {
	for _, seed := range []string{`Bearer realm="https://a/b",service="c",scope="d"`, `Basic`, `Basic realm="\`, `a=b`, `a = "b`, "\"", "Bearer realm=\"\\\""} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, header string) {
		for _, c := range parseChallenges(header) {
			if c.scheme == "" || c.parameters == nil {
				t.Errorf("%q gives %+v", header, c)
			}
			for _, value := range c.parameters {
				if len(value) > len(header) {
					t.Errorf("%q gives a longer value", header)
				}
			}
		}
	})
}

func TestRetryAfter(t *testing.T) {
	date := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	for name, test := range map[string]struct {
		header http.Header
		want   time.Duration
	}{
		"none":                       {http.Header{}, 0},
		"seconds":                    {http.Header{"Retry-After": {"90"}}, 90 * time.Second},
		"negative":                   {http.Header{"Retry-After": {"-5"}}, 0},
		"too long":                   {http.Header{"Retry-After": {"999999999"}}, time.Hour},
		"no number":                  {http.Header{"Retry-After": {"soon"}}, 0},
		"more than a number holds":   {http.Header{"Retry-After": {"99999999999999999999"}}, 0},
		"a date, by the other clock": {http.Header{"Retry-After": {date.Add(time.Minute).Format(http.TimeFormat)}, "Date": {date.Format(http.TimeFormat)}}, time.Minute},
		"a date of the past":         {http.Header{"Retry-After": {date.Format(http.TimeFormat)}}, 0},
	} {
		if got := retryAfter(test.header); got != test.want {
			t.Errorf("%s: %s, want %s", name, got, test.want)
		}
	}
}

func TestQuotas(t *testing.T) {
	now := time.Now()
	header := func(limit, remaining string) http.Header {
		return http.Header{"Ratelimit-Limit": {limit}, "Ratelimit-Remaining": {remaining}}
	}
	for name, test := range map[string]struct {
		header http.Header
		at     time.Time
		want   bool
	}{
		"enough":              {header("100;w=21600", "20;w=21600"), now, false},
		"few":                 {header("100;w=21600", "19;w=21600"), now, true},
		"few, an hour ago":    {header("100;w=3600", "0;w=3600"), now.Add(time.Hour), false},
		"without a window":    {header("100", "1"), now, true},
		"nothing said":        {http.Header{}, now, false},
		"no numbers":          {header("many", "few"), now, false},
		"a limit of zero":     {header("0;w=1", "0;w=1"), now, false},
		"only what is left":   {http.Header{"Ratelimit-Remaining": {"0"}}, now, false},
		"a window of nothing": {header("100;w=", "1;w="), now, true},
	} {
		s := &hostState{quotas: map[who]quota{}}
		s.readQuota(who{}, test.header, now)
		if got := s.quotaLow(who{}, test.at); got != test.want {
			t.Errorf("%s: %v", name, got)
		}
		if s.quotaLow(who{1}, test.at) {
			t.Errorf("%s: one caller's quota is another's", name)
		}
	}
}
