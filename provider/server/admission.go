package server

import (
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"strings"

	"github.com/gorilla/mux"

	"github.com/archkeeper/archkeeper/provider/reload"
)

// PathAdmit is followed by the token of the webhook configuration's URL path.
const PathAdmit = "/v1/admit/"

// An admission token is part of a URL path and long enough not to be guessed.
var admissionToken = regexp.MustCompile(`^[A-Za-z0-9._~-]{16,256}$`)

// newAdmissionToken follows a file that holds the token; white space around
// it, as an editor leaves, does not count.
func newAdmissionToken(file string, o reload.Options) (*reload.Value[string], error) {
	token, err := reload.New([]string{file}, func(contents [][]byte) (string, error) {
		token := strings.TrimSpace(string(contents[0]))
		if !admissionToken.MatchString(token) {
			return "", errors.New("an admission token is 16 to 256 letters, digits or . _ ~ -")
		}
		return token, nil
	}, o)
	if err != nil {
		return nil, fmt.Errorf("admission token: %w", err)
	}
	return token, nil
}

// admissionHandler hands requests on whose path shows the token. The API
// server presents no client certificate by default, so the path is what proves
// it; any other path is not found, whatever is wrong with it.
func (s *Server) admissionHandler() http.Handler {
	router := mux.NewRouter().SkipClean(true)
	router.NotFoundHandler = s.metrics.counted(pathOther, s.recovered(http.HandlerFunc(s.notFound)))
	router.Handle(PathAdmit+"{token}", s.metrics.counted(PathAdmit, s.recovered(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		// Of equal length and compared in constant time.
		given, want := sha256.Sum256([]byte(mux.Vars(r)["token"])), sha256.Sum256([]byte(s.admissionToken.Get()))
		if subtle.ConstantTimeCompare(given[:], want[:]) != 1 {
			s.metrics.refusals.WithLabelValues(reasonToken).Inc()
			s.notFound(w, r)
			return
		}
		if r.Method != http.MethodPost {
			s.refuseMethod(w, http.MethodPost)
			return
		}
		s.closeWhenDraining(w)
		s.o.AdmissionHandler.ServeHTTP(w, r)
	}))))
	return router
}
