package auth

import (
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rsa"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"math/big"
	"slices"

	"github.com/largesse/largesse/internal/reward"
)

const (
	rsaBitsMin = 2048
	rsaBitsMax = 8192 // a larger key takes too much time per token
)

var rsaAlgorithms = []string{"RS256", "RS384", "RS512", "PS256", "PS384", "PS512"}

// curves lists the curves of EC keys. Each has one algorithm (RFC 7518 §3.4).
var curves = map[string]struct {
	curve     elliptic.Curve
	algorithm string
}{
	"P-256": {elliptic.P256(), "ES256"},
	"P-384": {elliptic.P384(), "ES384"},
	"P-521": {elliptic.P521(), "ES512"},
}

type publicKey struct {
	kid        string // "": none
	algorithms []string
	key        any // *rsa.PublicKey, *ecdsa.PublicKey or ed25519.PublicKey
}

// webKey is a JWK (RFC 7517 §4): a member of a JWKS.
type webKey struct {
	Type   string   `json:"kty"`
	Use    string   `json:"use"`
	Ops    []string `json:"key_ops"`
	Alg    string   `json:"alg"`
	ID     string   `json:"kid"`
	N      string   `json:"n"`
	E      string   `json:"e"`
	Curve  string   `json:"crv"`
	X      string   `json:"x"`
	Y      string   `json:"y"`
	Secret any      `json:"d"`
}

// parseJWKS decodes a JWKS (RFC 7517 §5), without keys for other purposes than
// signatures. skipped says why others are unusable.
func parseJWKS(doc []byte) (keys []publicKey, skipped []string, err error) {
	var set struct {
		Keys *[]json.RawMessage `json:"keys"`
	}
	if err := json.Unmarshal(doc, &set); err != nil {
		return nil, nil, fmt.Errorf("it is not a JWKS: %w", err)
	}
	if set.Keys == nil {
		return nil, nil, errors.New("it is not a JWKS: it has no field keys")
	}
	for i, raw := range *set.Keys {
		var w webKey
		if err := json.Unmarshal(raw, &w); err != nil {
			skipped = append(skipped, fmt.Sprintf("key %d: %v", i+1, err))
			continue
		}
		if w.Use != "" && w.Use != "sig" || w.Ops != nil && !slices.Contains(w.Ops, "verify") {
			continue
		}
		key, algs, err := w.parse()
		if err == nil && w.Alg != "" && !slices.Contains(algs, w.Alg) {
			err = fmt.Errorf("its alg %s does not fit", reward.Quote(w.Alg))
		}
		if err != nil {
			skipped = append(skipped, fmt.Sprintf("key %d (kid %s): %v", i+1, reward.Quote(w.ID), err))
			continue
		}
		if w.Alg != "" {
			algs = []string{w.Alg}
		}
		keys = append(keys, publicKey{kid: w.ID, algorithms: algs, key: key})
	}
	return keys, skipped, nil
}

func (w webKey) parse() (key any, algs []string, err error) {
	switch {
	case w.Type == "oct":
		return nil, nil, errors.New("it is symmetric: every reader of the JWKS could sign tokens")
	case w.Secret != nil:
		return nil, nil, errors.New("it contains the private key (d)")
	}
	switch w.Type {
	case "RSA":
		key, err = w.rsaKey()
		return key, rsaAlgorithms, err
	case "EC":
		c, known := curves[w.Curve]
		if !known {
			return nil, nil, fmt.Errorf("its curve %s is none of P-256, P-384, P-521", reward.Quote(w.Curve))
		}
		key, err = w.ecKey(c.curve)
		return key, []string{c.algorithm}, err
	case "OKP":
		key, err = w.edKey()
		return key, []string{"EdDSA"}, err
	}
	return nil, nil, fmt.Errorf("its kty %s is none of RSA, EC, OKP", reward.Quote(w.Type))
}

func (w webKey) rsaKey() (*rsa.PublicKey, error) {
	modulus, err := decodeMember("n", w.N)
	if err != nil {
		return nil, err
	}
	exponent, err := decodeMember("e", w.E)
	if err != nil {
		return nil, err
	}
	n, e := new(big.Int).SetBytes(modulus), new(big.Int).SetBytes(exponent)
	switch bits := n.BitLen(); {
	case bits < rsaBitsMin || bits > rsaBitsMax:
		return nil, fmt.Errorf("it has %d bits: it must have from %d to %d", bits, rsaBitsMin, rsaBitsMax)
	case n.Bit(0) == 0:
		return nil, errors.New("its n is even")
	case e.BitLen() < 2 || e.BitLen() > 31 || e.Bit(0) == 0:
		return nil, errors.New("its e is not odd and from 3 to 2147483647")
	}
	return &rsa.PublicKey{N: n, E: int(e.Int64())}, nil
}

func (w webKey) ecKey(curve elliptic.Curve) (*ecdsa.PublicKey, error) {
	x, err := decodeMember("x", w.X)
	if err != nil {
		return nil, err
	}
	y, err := decodeMember("y", w.Y)
	if err != nil {
		return nil, err
	}
	// RFC 7518 §6.2.1: both have a fixed size.
	if size := (curve.Params().BitSize + 7) / 8; len(x) != size || len(y) != size {
		return nil, fmt.Errorf("its x and y must have %d bytes each", size)
	}
	key, err := ecdsa.ParseUncompressedPublicKey(curve, slices.Concat([]byte{4}, x, y))
	if err != nil {
		return nil, errors.New("its x and y are not a point of its curve")
	}
	return key, nil
}

func (w webKey) edKey() (ed25519.PublicKey, error) {
	if w.Curve != "Ed25519" {
		return nil, fmt.Errorf("its curve %s is not Ed25519", reward.Quote(w.Curve))
	}
	x, err := decodeMember("x", w.X)
	if err != nil {
		return nil, err
	}
	if len(x) != ed25519.PublicKeySize {
		return nil, fmt.Errorf("its x must have %d bytes", ed25519.PublicKeySize)
	}
	return x, nil
}

func decodeMember(name, text string) ([]byte, error) {
	raw, err := base64.RawURLEncoding.Strict().DecodeString(text)
	if err != nil || text == "" {
		return nil, fmt.Errorf("its %s is missing, or not in base64url without padding", name)
	}
	return raw, nil
}
