package reach

import (
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"hash"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// maxPEMBytes bounds one certificate file. The largest known bundle, that of
// the whole web, is below 300 KiB.
const maxPEMBytes = 4 << 20

// settled is the age from which a file's modification time tells versions
// apart: file systems stamp by ticks of up to 2 s, so that a file written again
// within its tick looks unchanged.
const settled = 2 * time.Second

// generation is a transport and the state of the files that it was made from.
// Requests in flight keep the generation they started with.
type generation struct {
	transport *http.Transport
	stamp     string
	content   [sha256.Size]byte
	fault     string // last told to the logger
}

// transport gives the current generation's transport of a profile, made anew
// when a file that it was made from has other content. Files that became
// unusable are told to the logger, once for each fault, and leave the last good
// generation in place.
func (r *Reach) transport(key profile) (*http.Transport, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	stamp := r.trust.stamp(key.certsDir)
	current := r.transports[key]
	if current != nil && current.stamp == stamp {
		return current.transport, nil
	}
	config, content, err := r.trust.read(key.certsDir)
	switch {
	case err != nil && current == nil:
		return nil, err
	case err != nil:
		current.stamp = stamp
		if current.fault != err.Error() && r.config.Logger != nil {
			r.config.Logger.Warn("certificate files cannot be used; the last good ones stay in use", "error", err)
		}
		current.fault = err.Error()
		return current.transport, nil
	case current != nil && current.content == content:
		current.stamp, current.fault = stamp, ""
		return current.transport, nil
	}
	transport, err := r.newTransport(key, config)
	if err != nil {
		return nil, err
	}
	r.transports[key] = &generation{transport: transport, stamp: stamp, content: content}
	if current != nil {
		current.transport.CloseIdleConnections()
	}
	return transport, nil
}

// trustFiles are the files that say whom to trust and what to show.
type trustFiles struct {
	caFiles   []string
	certsDirs []string
}

// directory gives the certs.d directory of a canonical host, or "".
func (f trustFiles) directory(host string) string {
	if host == "" || strings.ContainsAny(host, `/\`) || strings.HasPrefix(host, ".") {
		return ""
	}
	names := []string{host}
	if hostname(host) == host || strings.HasSuffix(host, "]") {
		names = append(names, host+":443") // the canonical form has no default port, a directory may
	}
	for _, dir := range f.certsDirs {
		for _, name := range names {
			candidate := filepath.Join(dir, name)
			if info, err := os.Stat(candidate); err == nil && info.IsDir() { //nolint:gosec // G703: the host of a reference has no slash
				return candidate
			}
		}
	}
	return ""
}

// stamp describes the state of the files behind a TLS configuration: it
// changes when they do. A file younger than its clock's tick gets the present
// time into the stamp, and is therefore read again until it has settled.
func (f trustFiles) stamp(certsDir string) string {
	var b strings.Builder
	now := time.Now()
	note := func(path string, info fs.FileInfo, err error) {
		if err != nil {
			fmt.Fprintf(&b, "%s!%v\n", path, errors.Is(err, fs.ErrNotExist))
			return
		}
		fmt.Fprintf(&b, "%s %d %d\n", path, info.Size(), info.ModTime().UnixNano())
		if age := now.Sub(info.ModTime()); age >= 0 && age < settled {
			fmt.Fprintf(&b, "unsettled %d\n", now.UnixNano()/int64(100*time.Millisecond))
		}
	}
	for _, path := range f.caFiles {
		info, err := os.Stat(path)
		note(path, info, err)
	}
	if certsDir != "" {
		entries, err := os.ReadDir(certsDir)
		if err != nil {
			note(certsDir, nil, err)
		}
		for _, entry := range entries {
			path := filepath.Join(certsDir, entry.Name())
			info, err := os.Stat(path) // follows the symbolic links of a mounted volume
			note(path, info, err)
		}
	}
	return b.String()
}

// read makes the TLS configuration: at least TLS 1.2, the system's authorities,
// those of the bundles, those of the directory and its client certificates. The
// sum tells contents apart.
func (f trustFiles) read(certsDir string) (config *tls.Config, content [sha256.Size]byte, err error) {
	config = &tls.Config{MinVersion: tls.VersionTLS12, ClientSessionCache: tls.NewLRUClientSessionCache(256)}
	if len(f.caFiles) == 0 && certsDir == "" {
		return config, content, nil
	}
	pool, err := x509.SystemCertPool()
	if err != nil {
		pool = x509.NewCertPool() // an image without a trust store still has the bundles
	}
	config.RootCAs = pool
	reader := certReader{pool: pool, sum: sha256.New()}
	for _, path := range f.caFiles {
		if err := reader.authorities(path); err != nil {
			return nil, content, err
		}
	}
	if certsDir != "" {
		if config.Certificates, err = reader.directory(certsDir); err != nil {
			return nil, content, err
		}
	}
	copy(content[:], reader.sum.Sum(nil))
	return config, content, nil
}

// certReader reads certificate files and sums what it read.
type certReader struct {
	pool *x509.CertPool
	sum  hash.Hash
}

// directory reads <host>/ of a certs.d: authorities into the pool; it gives the
// client certificates.
func (r certReader) directory(dir string) ([]tls.Certificate, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("certificates of a registry: %w", err)
	}
	var pairs []tls.Certificate
	for _, entry := range entries {
		path := filepath.Join(dir, entry.Name())
		base := strings.TrimSuffix(path, filepath.Ext(path))
		switch filepath.Ext(path) {
		case ".crt":
			if err := r.authorities(path); err != nil {
				return nil, err
			}
		case ".cert":
			pair, err := r.pair(path, base+".key")
			if err != nil {
				return nil, err
			}
			pairs = append(pairs, pair)
		case ".key":
			if _, err := os.Stat(base + ".cert"); err != nil {
				return nil, fmt.Errorf("key %s has no certificate %s", path, base+".cert")
			}
		}
	}
	return pairs, nil
}

func (r certReader) authorities(path string) error {
	data, err := r.read(path)
	if err != nil {
		return fmt.Errorf("certificate authorities: %w", err)
	}
	if !r.pool.AppendCertsFromPEM(data) {
		return fmt.Errorf("certificate authorities: %s holds no PEM certificate", path)
	}
	return nil
}

// pair never repeats what the files hold.
func (r certReader) pair(certFile, keyFile string) (tls.Certificate, error) {
	cert, err := r.read(certFile)
	if err != nil {
		return tls.Certificate{}, fmt.Errorf("client certificate: %w", err)
	}
	key, err := r.read(keyFile)
	if err != nil {
		return tls.Certificate{}, fmt.Errorf("key of a client certificate: %w", err)
	}
	pair, err := tls.X509KeyPair(cert, key)
	if err != nil {
		return tls.Certificate{}, fmt.Errorf("client certificate %s and key %s are not a usable pair", certFile, keyFile)
	}
	return pair, nil
}

func (r certReader) read(path string) ([]byte, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is not a regular file", path)
	}
	if info.Size() > maxPEMBytes {
		return nil, fmt.Errorf("%s is larger than %d bytes", path, maxPEMBytes)
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	fmt.Fprintf(r.sum, "%s %d\n", path, len(data))
	_, _ = r.sum.Write(data) // a hash never fails
	return data, nil
}
