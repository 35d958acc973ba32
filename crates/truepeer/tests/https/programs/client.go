// An HTTP/1.1 client with Go's net/http. `client URL AUTHORITY` sends the requests that clients.rs lists.
package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net/http"
	"net/http/httptrace"
	"net/textproto"
	"os"
	"strings"
	"time"
)

var site string
var client *http.Client

func must(holds bool, what ...any) {
	if !holds {
		fmt.Println(what...)
		os.Exit(1)
	}
}

func ask(method, path string, body io.Reader, adjust func(*http.Request)) (*http.Response, string) {
	request, err := http.NewRequest(method, site+path, body)
	must(err == nil, path, err)
	if adjust != nil {
		adjust(request)
	}
	response, err := client.Do(request)
	must(err == nil, method, path, err)
	must(response.ProtoMajor == 1, response.Proto)
	said, err := io.ReadAll(response.Body)
	must(err == nil, method, path, err)
	response.Body.Close()
	return response, string(said)
}

func plain() {
	reused := 0
	trace := &httptrace.ClientTrace{GotConn: func(info httptrace.GotConnInfo) {
		if info.Reused {
			reused++
		}
	}}
	for _, size := range []int{0, 1, 1000, 1000000} {
		traced := func(r *http.Request) { *r = *r.WithContext(httptrace.WithClientTrace(context.Background(), trace)) }
		response, said := ask("GET", fmt.Sprintf("/%d", size), nil, traced)
		must(response.StatusCode == 200 && said == strings.Repeat("x", size), "GET", size, len(said))
		response, said = ask("HEAD", fmt.Sprintf("/%d", size), nil, nil)
		must(response.ContentLength == int64(size) && said == "", "HEAD", size, response.ContentLength)
	}
	must(reused >= 3, "connections were used again", reused, "times")
	for _, status := range []int{204, 304} {
		response, said := ask("GET", fmt.Sprintf("/%d", status), nil, nil)
		must(response.StatusCode == status && said == "", "GET", status, response.StatusCode)
	}
}

func trailers() {
	response, said := ask("GET", "/chunked", nil, func(r *http.Request) { r.Header.Set("TE", "trailers") })
	must(said == "onetwothree" && response.Trailer.Get("X-Sum") == "11", said, response.Trailer)
	body := bytes.Repeat([]byte("some bytes "), 30000)
	response, said = ask("POST", "/digest", bytes.NewReader(body), func(r *http.Request) {
		r.ContentLength = -1
		r.Trailer = http.Header{"X-Sum": {"12"}}
	})
	must(said == fmt.Sprintf("%x", sha256.Sum256(body)), "digest", said)
	must(response.Header.Get("X-Sum-Was") == "12", "trailer", response.Header)
	_, said = ask("PUT", "/digest", bytes.NewReader(body), nil)
	must(said == fmt.Sprintf("%x", sha256.Sum256(body)), "digest", said)
}

// With Expect: 100-continue the body follows the origin's 100. An origin that refuses gets no body.
func expectations() {
	body := bytes.Repeat([]byte("y"), 100000)
	continued := false
	trace := &httptrace.ClientTrace{
		Got100Continue: func() { continued = true },
		Got1xxResponse: func(code int, _ textproto.MIMEHeader) error { return nil },
	}
	expect := func(r *http.Request) {
		*r = *r.WithContext(httptrace.WithClientTrace(context.Background(), trace))
		r.Header.Set("Expect", "100-continue")
	}
	_, said := ask("POST", "/digest", bytes.NewReader(body), expect)
	must(continued && said == fmt.Sprintf("%x", sha256.Sum256(body)), "100-continue", continued, said)
	response, _ := ask("POST", "/refuse", bytes.NewReader(body), expect)
	must(response.StatusCode == 422, "refuse", response.StatusCode)
}

func upgrade() {
	request, _ := http.NewRequest("GET", site+"/echo", nil)
	request.Header.Set("Connection", "Upgrade")
	request.Header.Set("Upgrade", "echo")
	response, err := client.Do(request)
	must(err == nil && response.StatusCode == 101, "upgrade", err, response)
	stream := response.Body.(io.ReadWriteCloser)
	for _, size := range []int{1, 1000, 300000} {
		sent, back := bytes.Repeat([]byte{byte(size)}, size), make([]byte, size)
		go stream.Write(sent)
		_, err = io.ReadFull(stream, back)
		must(err == nil && bytes.Equal(sent, back), "echo", size, err)
	}
	stream.Close()
}

func main() {
	site = os.Args[1]
	pem, _ := os.ReadFile(os.Args[2])
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(pem)
	client = &http.Client{Transport: &http.Transport{
		TLSClientConfig:       &tls.Config{RootCAs: roots},
		TLSNextProto:          map[string]func(string, *tls.Conn) http.RoundTripper{}, // no HTTP/2
		ExpectContinueTimeout: 50 * time.Second,
	}}
	plain()
	trailers()
	expectations()
	upgrade()
	fmt.Println("all well")
}
