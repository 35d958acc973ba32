cat >/etc/dovecot/dovecot.conf <<END
protocols = imap
listen = 127.0.0.1
ssl = no
log_path = /dev/stderr
disable_plaintext_auth = no
passdb {
  driver = static
  args = password=secret
}
userdb {
  driver = static
  args = uid=61000 gid=61000 home=/run/mail
}
mail_location = mbox:/run/mail/mbox
END
mkdir -p /run/mail
chown 61000:61000 /run/mail
exec "$@" dovecot -F
