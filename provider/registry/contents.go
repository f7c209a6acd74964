package registry

import (
	"context"
	"encoding/json"
	"net/http"

	"github.com/archkeeper/archkeeper/provider"
	"github.com/archkeeper/archkeeper/provider/credentials"
	"github.com/archkeeper/archkeeper/provider/imageref"
	"github.com/archkeeper/archkeeper/provider/manifest"
	"github.com/archkeeper/archkeeper/provider/platform"
)

// Contents is what one manifest or index says, without what it points at.
type Contents struct {
	// Digest that names it.
	Digest string
	Kind   provider.Kind
	// Entries of an index, in its order; nil for a manifest.
	Entries []Entry
}

// Entry is one entry of an index.
type Entry struct {
	Digest string
	// Platform that the index declares, normalised; empty when it declares none
	// that is valid.
	Platform string
}

// Contents reads the manifest or index of an image and nothing further, from
// the first place that is configured for it. Nothing is cached: it serves
// comparisons of what is there now.
func (i *Inspector) Contents(ctx context.Context, image string) (Contents, *provider.Error) {
	var contents Contents
	err := i.first(ctx, image, func(ctx context.Context, c *candidate, cred credentials.Credential) *provider.Error {
		answer, err := i.transport.do(ctx, &request{
			location: c.location, method: http.MethodGet, path: "manifests/" + c.content(), accept: acceptManifest(),
			what: c.describe(), limit: manifest.MaxManifest, unit: "manifest", cred: cred, pull: true,
		})
		if err != nil {
			return err
		}
		asked := c.ref.Digest()
		document, parseErr := manifest.Parse(answer.header.Get("Content-Type"), answer.body)
		digest := document.Digest(answer.body, asked)
		switch {
		case asked != "" && digest != asked:
			return describeErr(c, http.StatusOK, provider.Errorf(provider.ClassInvalidContent, "the content has the digest %s", digest))
		case parseErr != nil && asError(parseErr).Class != provider.ClassNotRunnable:
			return describeErr(c, http.StatusOK, asError(parseErr))
		}
		contents = Contents{Digest: digest, Kind: document.Kind}
		if document.Kind == provider.KindIndex {
			contents.Entries = entriesOf(answer.body)
		}
		return nil
	})
	return contents, err
}

// Has tells whether an image is there, by HEAD.
func (i *Inspector) Has(ctx context.Context, image string) (bool, *provider.Error) {
	err := i.first(ctx, image, func(ctx context.Context, c *candidate, cred credentials.Credential) *provider.Error {
		_, err := i.head(ctx, c, cred)
		return err
	})
	if err != nil && err.Class == provider.ClassNotFound {
		return false, nil
	}
	return err == nil, err
}

// first asks the first place of an image with each credential, then with none.
func (i *Inspector) first(ctx context.Context, image string, ask func(context.Context, *candidate, credentials.Credential) *provider.Error) *provider.Error {
	ctx, cancel := context.WithTimeout(ctx, i.options.FetchTimeout)
	defer cancel()
	tg, err := i.target(ctx, provider.Query{Image: image})
	if err != nil {
		return err
	}
	c := &tg.candidates[0]
	var refusal *provider.Error
	for n := range len(c.creds) + 1 {
		err := ask(ctx, c, c.credential(n))
		if err == nil || !refused(err) {
			return err
		}
		if refusal == nil {
			refusal = err
		}
	}
	return refusal
}

// entriesOf reads the entries of an index that has been parsed already.
func entriesOf(body []byte) []Entry {
	var index struct {
		Manifests []struct {
			Digest   string `json:"digest"`
			Platform struct {
				OS           string `json:"os"`
				Architecture string `json:"architecture"`
				Variant      string `json:"variant"`
			} `json:"platform"`
		} `json:"manifests"`
	}
	if json.Unmarshal(body, &index) != nil {
		return nil
	}
	entries := []Entry{}
	for _, m := range index.Manifests {
		if !imageref.ValidDigest(m.Digest) {
			continue
		}
		e := Entry{Digest: m.Digest}
		text := m.Platform.OS + "/" + m.Platform.Architecture
		if m.Platform.Variant != "" {
			text += "/" + m.Platform.Variant
		}
		if p, err := platform.Parse(text); err == nil {
			e.Platform = p.String()
		}
		entries = append(entries, e)
	}
	return entries
}
