package webhook

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"mime"
	"mime/multipart"
	"net"
	"net/http/httptest"
	"net/mail"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/emersion/go-sasl"
	"github.com/emersion/go-smtp"

	"github.com/largesse/largesse/internal/lab/fixture"
)

// mailbox is a mail server for one login. It refuses recipients at gone.example.
type mailbox struct {
	mechanism string // empty: no login
	mails     chan received
}

type received struct {
	from string
	to   []string
	text string
}

type mailSession struct {
	*mailbox
	received
	loggedIn bool
}

func (s *mailSession) Reset()        { s.received = received{} }
func (s *mailSession) Logout() error { return nil }

func (s *mailSession) AuthMechanisms() []string {
	if s.mechanism == "" {
		return nil
	}
	return []string{s.mechanism}
}

func (s *mailSession) Auth(mechanism string) (sasl.Server, error) {
	check := func(user, password string) error {
		if s.loggedIn = user == "kim" && password == "p w:"; !s.loggedIn {
			return smtp.ErrAuthFailed
		}
		return nil
	}
	if mechanism == "LOGIN" {
		return &loginServer{check: check}, nil
	}
	return sasl.NewPlainServer(func(_, user, password string) error { return check(user, password) }), nil
}

// loginServer is the other side of loginAuth.
type loginServer struct {
	answers []string
	check   func(user, password string) error
}

func (s *loginServer) Next(response []byte) (challenge []byte, done bool, err error) {
	if response != nil {
		s.answers = append(s.answers, string(response))
	}
	if len(s.answers) == 2 {
		return nil, true, s.check(s.answers[0], s.answers[1])
	}
	return []byte([]string{"Username:", "Password:"}[len(s.answers)]), false, nil
}

func (s *mailSession) Mail(from string, _ *smtp.MailOptions) error {
	if s.mechanism != "" && !s.loggedIn {
		return smtp.ErrAuthRequired
	}
	s.from = from
	return nil
}

func (s *mailSession) Rcpt(to string, _ *smtp.RcptOptions) error {
	if strings.HasSuffix(to, "@gone.example") {
		return &smtp.SMTPError{Code: 550, Message: "no such user"}
	}
	s.to = append(s.to, to)
	return nil
}

func (s *mailSession) Data(r io.Reader) error {
	text, err := io.ReadAll(r)
	s.text = string(text)
	s.mails <- s.received
	return err
}

// serveMail starts a real mail server, and returns a MailServer that trusts it.
func serveMail(t *testing.T, box *mailbox, scheme, login string) *MailServer {
	t.Helper()
	box.mails = make(chan received, 9)
	server := smtp.NewServer(smtp.BackendFunc(func(*smtp.Conn) (smtp.Session, error) { return &mailSession{mailbox: box}, nil }))
	server.AllowInsecureAuth = true
	l := fixture.Must(net.Listen("tcp", "127.0.0.1:0"))(t)
	certified := httptest.NewTLSServer(nil)
	certified.Close()
	if scheme != "plain" {
		server.TLSConfig = certified.TLS
	}
	serving := make(chan error, 1)
	listening := l
	if scheme == schemeSMTPS {
		listening = tls.NewListener(l, certified.TLS)
	}
	go func() { serving <- server.Serve(listening) }()
	t.Cleanup(func() {
		fixture.OK(t, server.Close())
		if err := <-serving; err != nil && !errors.Is(err, smtp.ErrServerClosed) {
			t.Error(err)
		}
	})
	s := fixture.Must(NewMailServer(strings.Replace(scheme, "plain", schemeSMTP, 1)+"://"+login+l.Addr().String(), "Largesse <rewards@shop.example>", nil))(t)
	s.tls.RootCAs = x509.NewCertPool()
	s.tls.RootCAs.AddCert(certified.Certificate())
	return s
}

// hostileNote has texts that would end a header, or be HTML.
var hostileNote = note{
	title: "승인 <b>\r\nBcc: eve@example.com", lines: []noteLine{{"Reason", "<script>alert(1)</script>"}},
	link: "https://console.example/#/promotions/7", open: "Open",
}

func TestMail(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ scheme, mechanism, login string }{
		"STARTTLS": {schemeSMTP, "PLAIN", "kim:p%20w%3A@"}, "TLS": {schemeSMTPS, "LOGIN", "kim:p%20w%3A@"}, "Relay": {"plain", "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			box := &mailbox{mechanism: c.mechanism}
			s := serveMail(t, box, c.scheme, c.login)
			fixture.OK(t, s.Check(t.Context()))
			to := []string{"ann@example.com", "bob@gone.example"}
			message := fixture.Must(s.compose(&hostileNote, "msg_1_2", to, time.Now()))(t)
			status, refused, err := s.send(t.Context(), to, message)
			if err != nil || status != mailAccepted || len(refused) != 1 || !strings.Contains(refused[0], "bob@gone.example: 550") {
				t.Fatalf("%d, %q, %v", status, refused, err)
			}
			got := <-box.mails
			if got.from != "rewards@shop.example" || !slices.Equal(got.to, to[:1]) {
				t.Errorf("%+v", got)
			}
			m := fixture.Must(mail.ReadMessage(strings.NewReader(got.text)))(t)
			subject := fixture.Must(new(mime.WordDecoder).DecodeHeader(m.Header.Get("Subject")))(t)
			if subject != hostileNote.title || m.Header.Get("Bcc") != "" || m.Header.Get("Message-Id") != "<msg_1_2@shop.example>" {
				t.Errorf("headers %v", m.Header)
			}
			_, params, err := mime.ParseMediaType(m.Header.Get("Content-Type"))
			fixture.OK(t, err)
			parts := multipart.NewReader(m.Body, params["boundary"])
			for _, want := range []string{"Reason: <script>alert(1)</script>", "<td>&lt;script&gt;alert(1)&lt;/script&gt;</td>"} {
				part := fixture.Must(parts.NextPart())(t)
				if text := fixture.Must(io.ReadAll(part))(t); !strings.Contains(string(text), want) || !strings.Contains(string(text), hostileNote.link) {
					t.Errorf("%s without %q", text, want)
				}
			}
		})
	}
	t.Run("SaysWhyNothingIsSent", func(t *testing.T) {
		t.Parallel()
		for want, c := range map[string]struct {
			scheme, mechanism, login, to string
			change                       func(*MailServer)
		}{
			"the mail server responded: 535": {schemeSMTP, "PLAIN", "kim:other@", "ann@example.com", nil},
			"the mail server responded: 550": {"plain", "", "", "bob@gone.example", nil},
			errNoLogin.Error():               {"plain", "", "kim:p@", "ann@example.com", nil},
			errClearText.Error():             {"plain", "PLAIN", "kim:p@", "ann@example.com", func(s *MailServer) { s.name = "mail.example" }},
			"the TLS certificate of the mail server is signed by an unknown": {schemeSMTP, "", "", "ann@example.com", func(s *MailServer) { s.tls.RootCAs = nil }},
			"the mail server refused the connection":                         {"plain", "", "", "ann@example.com", func(s *MailServer) { s.address = "127.0.0.1:1" }},
			"the password for notify.smtp-url cannot be read":                {"plain", "PLAIN", "kim@", "ann@example.com", func(s *MailServer) { s.password = func() (string, error) { return "", errors.New("cannot be read") } }},
		} {
			box := &mailbox{mechanism: c.mechanism}
			s := serveMail(t, box, c.scheme, c.login)
			if c.change != nil {
				c.change(s)
			}
			_, _, err := s.send(t.Context(), []string{c.to}, []byte("Subject: x\r\n\r\n"))
			if err == nil || !strings.HasPrefix(Reason(err), want) || len(box.mails) > 0 {
				t.Errorf("%v, want %s", err, want)
			}
		}
	})
}

func TestMailAddresses(t *testing.T) {
	t.Parallel()
	for text, ok := range map[string]bool{
		"kim@example.com": true, "k.i+m@mail.example.co.kr": true, "": false, "kim": false, "Kim <kim@example.com>": false, "kim@example.com\r\nBcc: x@y.z": false,
		"김@example.com": false, "kim@example.com, lee@example.com": false, "kim lee@example.com": false, strings.Repeat("a", 250) + "@b.example": false,
	} {
		if err := CheckMailAddress(text); (err == nil) != ok {
			t.Errorf("%q: %v", text, err)
		}
	}
	for _, address := range []string{"mail.example:587", "http://mail.example", "smtp://", "smtp://mail.example/inbox", "smtp://mail.example?tls=no", "smtp://a:s3cret@mail.example:x"} {
		if _, err := NewMailServer(address, "a@b.example", nil); err == nil || strings.Contains(err.Error(), "s3cret") {
			t.Errorf("%s: %v", address, err)
		}
	}
	if _, err := NewMailServer("smtps://mail.example", "Largesse", nil); err == nil {
		t.Error("a sender without an address is accepted")
	}
	for address, want := range map[string]string{"smtp://mail.example": "mail.example:587", "smtps://mail.example": "mail.example:465", "smtp://[::1]:25": "[::1]:25"} {
		if s := fixture.Must(NewMailServer(address, "a@b.example", nil))(t); s.address != want {
			t.Errorf("%s is %s, want %s", address, s.address, want)
		}
	}
}
