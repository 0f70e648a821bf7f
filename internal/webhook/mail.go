package webhook

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"mime"
	"mime/multipart"
	"mime/quotedprintable"
	"net"
	"net/mail"
	"net/netip"
	"net/smtp"
	"net/textproto"
	"net/url"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/largesse/largesse/internal/netfault"
)

// mailTimeout limits the sending of one e-mail. Mail servers may judge a message before
// they accept it.
const mailTimeout = 30 * time.Second

// The schemes of the URL of a mail server: with STARTTLS, and with TLS from the first byte.
const (
	schemeSMTP  = "smtp"
	schemeSMTPS = "smtps"
)

// MailServer sends e-mails. Its address is named by the operator, so it is not checked by
// CheckAddress.
type MailServer struct {
	name, address string
	user          string
	password      func() (string, error)
	from          *mail.Address
	encrypted     bool // from the first byte
	tls           *tls.Config
}

// NewMailServer returns the mail server at an smtp:// or smtps:// URL. password replaces
// that of the URL, unless it is nil. from is who sends. The errors do not show the URL.
func NewMailServer(address, from string, password func() (string, error)) (*MailServer, error) {
	u, err := url.Parse(address)
	if err != nil || u.Scheme != schemeSMTP && u.Scheme != schemeSMTPS || u.Hostname() == "" {
		return nil, errors.New("must be like smtp://user:password@mail.example:587 or smtps://mail.example")
	}
	if strings.Trim(u.Path, "/") != "" || u.RawQuery != "" || u.Fragment != "" {
		return nil, errors.New("must have nothing after the host and the port")
	}
	sender, err := mail.ParseAddress(from)
	if err != nil {
		return nil, errors.New("needs notify.from, an e-mail address such as Largesse <largesse@example.com>")
	}
	s := &MailServer{
		name: u.Hostname(), user: u.User.Username(), password: password, from: sender, encrypted: u.Scheme == schemeSMTPS,
		tls: &tls.Config{ServerName: u.Hostname(), MinVersion: tls.VersionTLS12},
	}
	port := "587"
	if s.encrypted {
		port = "465"
	}
	s.address = net.JoinHostPort(s.name, cmp.Or(u.Port(), port))
	if password == nil {
		text, _ := u.User.Password()
		s.password = func() (string, error) { return text, nil }
	}
	return s, nil
}

// CheckMailAddress checks the address of somebody who gets e-mails.
func CheckMailAddress(text string) error {
	a, err := mail.ParseAddress(text)
	if err != nil || a.Address != text || len(text) > 254 || strings.ContainsFunc(text, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return errors.New("must be an e-mail address such as kim@example.com, in ASCII and without a name")
	}
	return nil
}

// Check logs in to the mail server and sends nothing.
func (s *MailServer) Check(ctx context.Context) error {
	return s.session(ctx, func(*smtp.Client) error { return nil })
}

// send sends a message to the addresses that the server accepts, and returns the ones that it
// refuses, with its reasons. The status is the code of the server's last reply, 0 without one. It fails if nobody
// is accepted. If the reply to the message is lost, it may have been sent.
func (s *MailServer) send(ctx context.Context, to []string, message []byte) (status int, refused []string, err error) {
	err = s.session(ctx, func(c *smtp.Client) error {
		if err := c.Mail(s.from.Address); err != nil {
			return err
		}
		var last error
		for _, address := range to {
			if err := c.Rcpt(address); err != nil {
				refused, last = append(refused, address+": "+err.Error()), err
			}
		}
		if len(refused) == len(to) {
			return last
		}
		w, err := c.Data()
		if err != nil {
			return err
		}
		if _, err := w.Write(message); err != nil {
			return err
		}
		return w.Close()
	})
	if reply, ok := errors.AsType[*textproto.Error](err); ok {
		return reply.Code, refused, err
	}
	if err != nil {
		return 0, nil, err
	}
	return mailAccepted, refused, nil
}

const mailAccepted = 250 // the reply to a message

var (
	errClearText = errors.New("the mail server offers no STARTTLS, so the password would be sent in clear text; use smtps://, or a server that offers it")
	errNoLogin   = errors.New("the mail server offers no login at this port; use the port for submission, or no user and password")
)

// session runs do in a session with the mail server, which ends with ctx.
func (s *MailServer) session(ctx context.Context, do func(*smtp.Client) error) error {
	ctx, cancel := context.WithTimeout(ctx, mailTimeout)
	defer cancel()
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", s.address)
	if err == nil {
		stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
		defer stop()
		err = s.talk(conn, do)
		_ = conn.Close()
	}
	_, explained := errors.AsType[*callError](err)
	reply, replied := errors.AsType[*textproto.Error](err)
	switch {
	case err == nil, explained, errors.Is(err, errClearText), errors.Is(err, errNoLogin):
		return err
	case replied:
		return fmt.Errorf("the mail server responded: %w", reply)
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		return fmt.Errorf("no response within %v", mailTimeout)
	}
	return &callError{cmp.Or(netfault.Reason(err, "the mail server"), noResponse), err}
}

func (s *MailServer) talk(conn net.Conn, do func(*smtp.Client) error) error {
	if s.encrypted {
		conn = tls.Client(conn, s.tls)
	}
	c, err := smtp.NewClient(conn, s.name)
	if err != nil {
		return err
	}
	if name, err := os.Hostname(); err == nil {
		if err := c.Hello(name); err != nil {
			return err
		}
	}
	if offered, _ := c.Extension("STARTTLS"); offered && !s.encrypted {
		if err := c.StartTLS(s.tls); err != nil {
			return err
		}
	}
	if err := s.login(c); err != nil {
		return err
	}
	if err := do(c); err != nil {
		return err
	}
	_ = c.Quit() // all is done
	return nil
}

func (s *MailServer) login(c *smtp.Client) error {
	if s.user == "" {
		return nil
	}
	password, err := s.password()
	if err != nil {
		return &callError{"the password for notify.smtp-url cannot be read", err}
	}
	offered, mechanisms := c.Extension("AUTH")
	ip, _ := netip.ParseAddr(s.name)
	switch _, secure := c.TLSConnectionState(); {
	case !secure && s.name != "localhost" && !ip.IsLoopback():
		return errClearText
	case !offered:
		return errNoLogin
	case slices.Contains(strings.Fields(mechanisms), "PLAIN"):
		return c.Auth(smtp.PlainAuth("", s.user, password, s.name))
	}
	return c.Auth(&loginAuth{answers: []string{s.user, password}})
}

// loginAuth is the mechanism LOGIN, which some servers offer instead of PLAIN.
type loginAuth struct{ answers []string }

func (a *loginAuth) Start(*smtp.ServerInfo) (mechanism string, first []byte, err error) {
	return "LOGIN", nil, nil
}

func (a *loginAuth) Next(_ []byte, more bool) ([]byte, error) {
	if !more || len(a.answers) == 0 {
		return nil, nil
	}
	next := a.answers[0]
	a.answers = a.answers[1:]
	return []byte(next), nil
}

// compose returns the e-mail for a message. Its ID is the same on every attempt.
func (s *MailServer) compose(n *note, id string, to []string, at time.Time) ([]byte, error) {
	var b bytes.Buffer
	parts := multipart.NewWriter(&b)
	_, domain, _ := strings.Cut(s.from.Address, "@")
	for _, header := range [][2]string{
		{"From", s.from.String()},
		{"To", strings.Join(to, ",\r\n ")},
		{"Subject", strings.ReplaceAll(mime.QEncoding.Encode("utf-8", n.title), "?= =?", "?=\r\n =?")}, // a line may have 998 bytes
		{"Date", at.Format(time.RFC1123Z)},
		{"Message-ID", "<" + id + "@" + domain + ">"},
		{"Auto-Submitted", "auto-generated"},
		{"MIME-Version", "1.0"},
		{"Content-Type", "multipart/alternative; boundary=" + parts.Boundary()},
	} {
		b.WriteString(header[0] + ": " + header[1] + "\r\n")
	}
	b.WriteString("\r\n")
	for _, part := range [][2]string{{"text/plain", n.text()}, {"text/html", n.html()}} {
		w, err := parts.CreatePart(textproto.MIMEHeader{
			"Content-Type": {part[0] + "; charset=utf-8"}, "Content-Transfer-Encoding": {"quoted-printable"},
		})
		if err != nil {
			return nil, err
		}
		encoded := quotedprintable.NewWriter(w)
		if _, err := encoded.Write([]byte(part[1])); err != nil {
			return nil, err
		}
		if err := encoded.Close(); err != nil {
			return nil, err
		}
	}
	if err := parts.Close(); err != nil {
		return nil, err
	}
	return b.Bytes(), nil
}
