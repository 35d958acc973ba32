# What Debian's postinst does for a fresh installation, with messages on standard output.
cp /usr/share/postfix/main.cf.debian /etc/postfix/main.cf
cp /usr/share/postfix/master.cf.dist /etc/postfix/master.cf
mkdir -p /var/spool/postfix /var/lib/postfix
chown postfix: /var/lib/postfix
cat >>/etc/postfix/main.cf <<END
inet_interfaces = 127.0.0.1
maillog_file = /dev/stdout
myhostname = mx.example
smtpd_peername_lookup = no
alias_maps =
alias_database =
END
exec "$@" postfix start-fg
