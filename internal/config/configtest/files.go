// Package configtest writes files for settings, such as certificates, for tests.
package configtest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// PutFile writes a file that only its owner can read, and returns its path.
func PutFile(t *testing.T, path, text string) string {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// IssueCert writes a self-signed certificate for 127.0.0.1 that expires at until, and
// its key.
func IssueCert(t *testing.T, dir, name string, until time.Time) (cert, key string) {
	t.Helper()
	return issueCert(t, dir, name, until, nil)
}

// IssueCertBy writes a certificate that an authority signs, whose own is in the same
// folder, and its key.
func IssueCertBy(t *testing.T, dir, authority, name string, until time.Time) (cert, key string) {
	t.Helper()
	by, err := tls.LoadX509KeyPair(filepath.Join(dir, authority+".crt"), filepath.Join(dir, authority+".key"))
	if err != nil {
		t.Fatal(err)
	}
	return issueCert(t, dir, name, until, &by)
}

func issueCert(t *testing.T, dir, name string, until time.Time, by *tls.Certificate) (cert, key string) {
	t.Helper()
	secret, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: name},
		NotBefore: until.Add(-24 * 365 * time.Hour), NotAfter: until, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		IsCA: by == nil, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	parent, signing := template, any(secret)
	if by != nil {
		parent, signing = by.Leaf, by.PrivateKey
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, &secret.PublicKey, signing)
	if err != nil {
		t.Fatal(err)
	}
	raw, err := x509.MarshalPKCS8PrivateKey(secret)
	if err != nil {
		t.Fatal(err)
	}
	cert = PutFile(t, filepath.Join(dir, name+".crt"), string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})))
	key = PutFile(t, filepath.Join(dir, name+".key"), string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: raw})))
	return cert, key
}
