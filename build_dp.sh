set -e
cd /tmp/dpA/cpp_cache; mkdir -p /tmp/dpA/build/dp
g++ -std=c++20 -O1 -g $1 -Wall -Wextra -Wpedantic -Werror -I. tests/main.cpp tests/dataplane.cpp dataplane/*.cpp steps/*.cpp digest/*.cpp core/*.cpp -ldl -lpthread -o ../build/dp/$2
