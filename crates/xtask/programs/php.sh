# PHP's own server with four workers, curl_multi, and streams.
# packages: php-cli php-curl
# needs: php

setup() {
    mkdir www
    cat >www/index.php <<'EOF'
<?php echo strlen(file_get_contents('php://input')), ' ', str_repeat('x', 100000);
EOF
    cat >c.php <<'EOF'
<?php
$url = 'http://' . getenv('A') . ':' . getenv('P') . '/index.php';
$multi = curl_multi_init();
$all = [];
for ($i = 0; $i < 40; $i++) {
    $one = curl_init($url);
    curl_setopt_array($one, [CURLOPT_RETURNTRANSFER => true, CURLOPT_POSTFIELDS => str_repeat('z', $i * 1000)]);
    curl_multi_add_handle($multi, $one);
    $all[] = $one;
}
do { curl_multi_exec($multi, $left); curl_multi_select($multi, 1); } while ($left);
foreach ($all as $i => $one) {
    if (curl_multi_getcontent($one) !== $i * 1000 . ' ' . str_repeat('x', 100000)) echo "wrong $i\n";
}
for ($i = 0; $i < 20; $i++) {
    $context = stream_context_create(['http' => ['method' => 'POST', 'content' => str_repeat('z', $i * 1000)]]);
    if (strlen(file_get_contents($url, false, $context)) !== 100001 + strlen($i * 1000)) echo "wrong $i\n";
}
echo "ok\n";
EOF
}

server() {
    exec env PHP_CLI_SERVER_WORKERS=4 php -q -S $A:$P -t www
}

client() {
    php c.php
}
