package manifest

import (
	"encoding/base64"

	"github.com/archkeeper/archkeeper/provider"
)

// schema1 reads a Docker schema 1 manifest. Its platform is the top-level
// architecture; operating system, variant and labels stand in the newest entry
// of its history, which is an image config of the first kind.
func (raw *documentJSON) schema1(body []byte) (Document, error) {
	document := Document{Facts: Facts{Kind: provider.KindSchema1}, MediaType: DockerSchema1}
	if len(raw.Signatures) > 0 {
		document.MediaType = DockerSigned1
		payload, err := raw.payload(body)
		if err != nil {
			return document, err
		}
		document.Signed = payload
	}
	var config configJSON
	if len(raw.History) > 0 && raw.History[0].V1Compatibility != "" {
		if err := decode([]byte(raw.History[0].V1Compatibility), &config); err != nil {
			document.warn("the newest entry of the manifest's history cannot be read")
			config = configJSON{}
		}
	}
	if raw.Architecture != "" && raw.Architecture != config.Architecture {
		if config.Architecture != "" {
			document.warn("the manifest and its history disagree on the architecture; the manifest decides")
		}
		config.Architecture, config.Variant = raw.Architecture, ""
	}
	err := config.describe(&document.Facts)
	return document, err
}

// payload gives the bytes that were signed: the body up to formatLength, then
// formatTail, both from the protected header. All signatures must agree.
// Source: the JSON web signature of docker/libtrust, "pretty signature".
func (raw *documentJSON) payload(body []byte) ([]byte, error) {
	var payload []byte
	for i, signature := range raw.Signatures {
		header, err := base64.RawURLEncoding.DecodeString(signature.Protected)
		if err != nil {
			return nil, invalid("the manifest's signature cannot be read: %w", err)
		}
		var protected struct {
			FormatLength int    `json:"formatLength"`
			FormatTail   string `json:"formatTail"`
		}
		if err := decode(header, &protected); err != nil {
			return nil, invalid("the manifest's signature cannot be read: %w", err)
		}
		tail, err := base64.RawURLEncoding.DecodeString(protected.FormatTail)
		if err != nil {
			return nil, invalid("the manifest's signature cannot be read: %w", err)
		}
		if protected.FormatLength <= 0 || protected.FormatLength > len(body) {
			return nil, invalid("the manifest's signature speaks of %d bytes of %d", protected.FormatLength, len(body))
		}
		signed := append(body[:protected.FormatLength:protected.FormatLength], tail...)
		if i > 0 && string(signed) != string(payload) {
			return nil, invalid("the manifest's signatures disagree on what is signed")
		}
		payload = signed
	}
	return payload, nil
}
