package largesse

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
)

// transport sends the calls of a client to a handler in this process. It streams
// bodies in both directions, so uploads, exports and events work as over a
// network.
type transport struct {
	handler  http.Handler
	up, over <-chan struct{} // see Engine
}

var errOver = errors.New("largesse: the engine has stopped")

// RoundTrip implements http.RoundTripper.
func (t *transport) RoundTrip(req *http.Request) (*http.Response, error) {
	body := req.Body
	if body == nil {
		body = http.NoBody
	}
	if err := t.wait(req.Context()); err != nil {
		_ = body.Close() // it was never read
		return nil, err
	}
	ctx, cancel := context.WithCancel(req.Context())
	r := req.Clone(ctx)
	r.Body, r.RequestURI, r.RemoteAddr, r.Host = body, req.URL.RequestURI(), "in-process", req.URL.Host
	r.URL.Scheme, r.URL.Host = "", ""
	if r.ContentLength == 0 && body != http.NoBody {
		r.ContentLength = -1 // a client's 0 means unknown
	}
	reader, writer := io.Pipe()
	w := &responseWriter{header: http.Header{}, request: req, body: writer, ready: make(chan *http.Response, 1)}
	w.reply = &responseBody{PipeReader: reader, cancel: cancel}
	// The end of the call interrupts reads and writes of the response.
	context.AfterFunc(ctx, func() { _ = writer.CloseWithError(context.Cause(ctx)) })
	failed := make(chan error, 1)
	go func() {
		defer cancel()
		defer body.Close()
		err := errors.New("largesse: the handler ended its goroutine")
		defer func() {
			if v := recover(); v != nil {
				err = fmt.Errorf("largesse: the response was cut: %v", v)
			}
			_ = writer.CloseWithError(err) // nil: the response is complete
			if err != nil {
				failed <- err
			}
		}()
		t.handler.ServeHTTP(w, r)
		w.WriteHeader(http.StatusOK)
		err = nil
	}()
	select {
	case res := <-w.ready:
		return res, nil
	case err := <-failed:
		return nil, err
	case <-ctx.Done():
	}
	select { // a response that the handler sent before the end counts
	case res := <-w.ready:
		return res, nil
	default:
		return nil, context.Cause(ctx)
	}
}

// wait waits until Run has started the instance.
func (t *transport) wait(ctx context.Context) error {
	select {
	case <-t.over:
		return errOver
	default:
	}
	select {
	case <-t.up:
		return nil
	case <-t.over:
		return errOver
	case <-ctx.Done():
		return fmt.Errorf("largesse: Run has not started the instance: %w", context.Cause(ctx))
	}
}

// responseWriter is the http.ResponseWriter of one call.
type responseWriter struct {
	header  http.Header
	request *http.Request
	body    *io.PipeWriter
	reply   *responseBody
	ready   chan *http.Response // receives one response
	status  int                 // 0: not sent yet
}

// Header implements http.ResponseWriter.
func (w *responseWriter) Header() http.Header { return w.header }

// WriteHeader sends the response without its body.
func (w *responseWriter) WriteHeader(status int) {
	if w.status != 0 || status < http.StatusOK {
		return
	}
	w.status = status
	length := int64(-1)
	if n, err := strconv.ParseInt(w.header.Get("Content-Length"), 10, 64); err == nil {
		length = n
	}
	w.ready <- &http.Response{
		Status: strconv.Itoa(status) + " " + http.StatusText(status), StatusCode: status,
		Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header: w.header.Clone(), Body: w.reply, ContentLength: length, Request: w.request,
	}
}

// Write blocks until the caller has read b.
func (w *responseWriter) Write(b []byte) (int, error) {
	w.WriteHeader(http.StatusOK)
	switch {
	case w.status == http.StatusNoContent, w.status == http.StatusNotModified:
		return 0, http.ErrBodyNotAllowed
	case w.request.Method == http.MethodHead:
		return len(b), nil
	}
	return w.body.Write(b)
}

// Flush implements http.Flusher. Nothing is buffered.
func (w *responseWriter) Flush() { w.WriteHeader(http.StatusOK) }

// responseBody is the body of a response. Closing it ends the call.
type responseBody struct {
	*io.PipeReader
	cancel context.CancelFunc
}

// Close implements io.Closer.
func (b *responseBody) Close() error {
	b.cancel()
	return b.PipeReader.Close()
}
