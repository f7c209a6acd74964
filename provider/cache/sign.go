package cache

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
)

const (
	keyIDSize  = 4
	minKeySize = 32
	maxKeyFile = 16 << 10
)

// signer authenticates entries of the shared tier. A signed entry is
//
//	identifier of the key       4 bytes
//	HMAC-SHA-256 under the key  32 bytes
//	payload
//
// over the length of the entry's key (4 bytes, big endian), that key, and the
// payload: an entry is good under its own key alone. The first key signs; each of
// them is believed, so that keys can be exchanged one replica after the other.
type signer []signingKey

type signingKey struct {
	id     [keyIDSize]byte
	secret []byte
}

var (
	errUnsigned = errors.New("an entry is not signed by a known key")
	errForged   = errors.New("an entry's signature is wrong")
)

// readKeys reads a file of keys, one a line, of at least 32 characters each. An
// error names the file and the line and shows no key.
func readKeys(path string) (signer, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("the shared cache's keys: %w", err)
	}
	defer file.Close()
	content, err := io.ReadAll(io.LimitReader(file, maxKeyFile+1))
	if err != nil {
		return nil, fmt.Errorf("the shared cache's keys: %w", err)
	}
	if len(content) > maxKeyFile {
		return nil, fmt.Errorf("the shared cache's keys: %s is larger than %d bytes", path, maxKeyFile)
	}
	var keys signer
	for n, line := range bytes.Split(content, []byte("\n")) {
		line = bytes.TrimSpace(line)
		if len(line) == 0 {
			continue
		}
		if len(line) < minKeySize {
			return nil, fmt.Errorf("the shared cache's keys: line %d of %s has fewer than %d characters", n+1, path, minKeySize)
		}
		id := sha256.Sum256(append([]byte("archkeeper shared cache key\n"), line...))
		keys = append(keys, signingKey{[keyIDSize]byte(id[:]), line})
	}
	if len(keys) == 0 {
		return nil, fmt.Errorf("the shared cache's keys: %s has none", path)
	}
	return keys, nil
}

func (k signingKey) sum(key string, payload []byte) []byte {
	mac := hmac.New(sha256.New, k.secret)
	_, _ = mac.Write(binary.BigEndian.AppendUint32(nil, uint32(len(key)))) //nolint:gosec // G115: a short key
	_, _ = io.WriteString(mac, key)
	_, _ = mac.Write(payload)
	return mac.Sum(nil)
}

func (s signer) sign(key string, payload []byte) []byte {
	signed := make([]byte, 0, keyIDSize+sha256.Size+len(payload))
	signed = append(signed, s[0].id[:]...)
	signed = append(signed, s[0].sum(key, payload)...)
	return append(signed, payload...)
}

// verify gives the payload of an entry that one of the keys signed.
func (s signer) verify(key string, record []byte) ([]byte, error) {
	if len(record) < keyIDSize+sha256.Size {
		return nil, errUnsigned
	}
	payload := record[keyIDSize+sha256.Size:]
	for _, k := range s {
		if !bytes.Equal(k.id[:], record[:keyIDSize]) {
			continue
		}
		if hmac.Equal(k.sum(key, payload), record[keyIDSize:keyIDSize+sha256.Size]) {
			return payload, nil
		}
		return nil, errForged
	}
	return nil, errUnsigned
}
