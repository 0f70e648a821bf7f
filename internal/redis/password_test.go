package redis

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/redis/rueidis"
)

// TestPasswordFile checks that each connection uses the password that is in the file, and
// the last usable one while there is none.
func TestPasswordFile(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "password")
	if _, err := (Config{URL: "redis://ann@one:1", PasswordFile: file}).Option(); err == nil {
		t.Error("a missing file is accepted")
	}
	var option rueidis.ClientOption
	for _, step := range []struct{ text, want string }{{"first\n", "first"}, {"second", "second"}, {"two\nlines", "second"}, {"", "second"}} {
		if err := os.WriteFile(file, []byte(step.text), 0o600); err != nil {
			t.Fatal(err)
		}
		if step.text == "first\n" {
			var err error
			if option, err = (Config{URL: "redis://ann@one:1", PasswordFile: file}).Option(); err != nil {
				t.Fatal(err)
			}
		}
		got, err := option.AuthCredentialsFn(rueidis.AuthCredentialsContext{})
		if err != nil || got.Username != "ann" || got.Password != step.want {
			t.Errorf("%q: %+v, %v; want %s", step.text, got, err, step.want)
		}
	}
}
